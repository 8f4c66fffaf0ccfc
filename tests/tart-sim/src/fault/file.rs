//! The file that switches a fault on.

use std::fmt;

use super::table::Subject;
use super::{Fault, FaultError};

/// A fault, for all VMs or for one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultFile {
    fault: Fault,
    vm: Option<String>,
}

impl Fault {
    /// The fault of one VM, which comes before the fault of all VMs.
    pub fn of_vm(self, vm: &str) -> FaultFile {
        FaultFile { fault: self, vm: Some(vm.to_owned()) }
    }
}

impl From<Fault> for FaultFile {
    fn from(fault: Fault) -> Self {
        Self { fault, vm: None }
    }
}

impl FaultFile {
    /// Reads a file's name: `<fault>` or `<fault>.<VM>`.
    pub(super) fn parse(name: &str) -> Result<Self, FaultError> {
        let (fault, vm) = match name.split_once('.') {
            Some((fault, vm)) => (fault, Some(vm.to_owned())),
            None => (name, None),
        };
        let known = Fault::ALL.iter().copied().find(|known| known.file_name() == fault);
        let (Some(fault), true) = (known, vm.as_deref() != Some("")) else {
            return Err(FaultError::Unknown(name.to_owned()));
        };
        let file = Self { fault, vm };
        file.check_subject()?;
        Ok(file)
    }

    /// Refuses the fault of one VM if it is not a fault of VMs, and a content that is no parameter of the fault.
    pub(super) fn check(&self, content: &str) -> Result<(), FaultError> {
        self.check_subject()?;
        if self.fault.parameter().accepts(content) {
            Ok(())
        } else {
            Err(FaultError::Parameter { fault: self.fault, found: content.to_owned() })
        }
    }

    fn check_subject(&self) -> Result<(), FaultError> {
        match self.vm {
            Some(_) if self.fault.subject() != Subject::Vm => Err(FaultError::NotForOneVm(self.fault)),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for FaultFile {
    /// The file's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.vm {
            Some(vm) => write!(f, "{}.{vm}", self.fault),
            None => write!(f, "{}", self.fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_and_faults_correspond() {
        for &fault in Fault::ALL {
            assert_eq!(FaultFile::parse(fault.file_name()).unwrap(), fault.into());
        }
        let of_vm = FaultFile::parse("run-dies.tk-1.2").unwrap();
        assert_eq!(of_vm, Fault::RunDies.of_vm("tk-1.2"));
        assert_eq!(of_vm.to_string(), "run-dies.tk-1.2");
    }

    #[test]
    fn unknown_file_names_are_refused() {
        for name in ["", "hagn", "hang-", "Hang", "run-dies.", "hagn.vm"] {
            assert!(matches!(FaultFile::parse(name), Err(FaultError::Unknown(_))), "{name:?}");
        }
        assert!(matches!(FaultFile::parse("hang.vm"), Err(FaultError::NotForOneVm(Fault::Hang))));
    }
}
