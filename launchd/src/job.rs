//! A job of launchd and its property list.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::label::Label;

/// A job of the system domain. Equal jobs render to equal bytes: the keys have one order, that of the fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct Job {
    /// Its name.
    pub label: Label,
    /// The program by its absolute path, and its arguments.
    pub program_arguments: Vec<String>,
    /// The user that it runs as; root when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_name: Option<String>,
    /// Its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment_variables: BTreeMap<String, String>,
    /// Whether launchd starts it as soon as it is loaded.
    pub run_at_load: bool,
    /// Whether launchd starts it again whenever it ends.
    pub keep_alive: bool,
    /// launchd starts it every so many seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_interval: Option<u32>,
    /// The least number of seconds between two starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttle_interval: Option<u32>,
    /// How many seconds it has to end after SIGTERM. Without it macOS decides: 5 at present, 20 in the past.
    pub exit_time_out: u32,
    /// Whether its children live on when it ends.
    pub abandon_process_group: bool,
    /// How much of the machine it may have.
    pub process_type: ProcessType,
    /// The file for its standard output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_out_path: Option<String>,
    /// The file for its standard error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standard_error_path: Option<String>,
    /// Limits that it may raise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft_resource_limits: Option<ResourceLimits>,
    /// Limits that it may not raise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard_resource_limits: Option<ResourceLimits>,
    /// The permission bits that its files do not get.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub umask: Option<u32>,
}

/// How much of the machine a job may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessType {
    /// As much as an app that the user works with.
    Interactive,
    /// A little less.
    Standard,
    /// What is left.
    Background,
}

/// Limits of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", deny_unknown_fields)]
pub struct ResourceLimits {
    /// How many files it may have open.
    pub number_of_files: u32,
}

/// A job that launchd would not run as it is meant.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// The job has no program.
    #[error("the job {0} has no program")]
    NoProgram(Label),
    /// A path is relative. launchd would look for it in `/`.
    #[error("`{path}` in the job {label} is no absolute path")]
    RelativePath {
        /// The job.
        label: Label,
        /// The path.
        path: String,
    },
    /// A value has a control character, which XML cannot carry or launchctl prints as another line.
    #[error("{key} of the job {label} has a control character")]
    ControlCharacter {
        /// The job.
        label: Label,
        /// The key.
        key: &'static str,
    },
    /// The name of an environment variable is empty or has `=`.
    #[error("`{name}` in the job {label} is no name of an environment variable")]
    VariableName {
        /// The job.
        label: Label,
        /// The name.
        name: String,
    },
    /// The property list could not be written or read.
    #[error("cannot make a property list of the job {label}")]
    Plist {
        /// The job.
        label: Label,
        /// Why.
        #[source]
        source: Box<plist::Error>,
    },
    /// The property list does not say what the job says.
    #[error("the property list of the job {0} does not read back as that job")]
    Altered(Label),
}

impl Job {
    /// The job as an XML property list, read back and compared.
    pub fn to_plist(&self) -> Result<Vec<u8>, JobError> {
        self.check()?;
        let broken = |source| JobError::Plist { label: self.label.clone(), source: Box::new(source) };
        let mut xml = Vec::new();
        plist::to_writer_xml(&mut xml, self).map_err(broken)?;
        xml.push(b'\n');
        let read: Self = plist::from_bytes(&xml).map_err(broken)?;
        if read == *self { Ok(xml) } else { Err(JobError::Altered(self.label.clone())) }
    }

    /// Reads a property list that this crate has written. It refuses one with keys that no [`Job`] has.
    pub fn from_plist(xml: &[u8]) -> Result<Self, plist::Error> {
        plist::from_bytes(xml)
    }

    /// The program; empty for a job that [`Job::to_plist`] refuses.
    pub fn program(&self) -> &str {
        self.program_arguments.first().map(String::as_str).unwrap_or_default()
    }

    fn check(&self) -> Result<(), JobError> {
        let label = || self.label.clone();
        let program = self.program_arguments.first().ok_or_else(|| JobError::NoProgram(label()))?;
        let paths = [Some(program), self.standard_out_path.as_ref(), self.standard_error_path.as_ref()];
        for path in paths.into_iter().flatten() {
            if !path.starts_with('/') {
                return Err(JobError::RelativePath { label: label(), path: path.clone() });
            }
        }
        for name in self.environment_variables.keys() {
            if name.is_empty() || name.contains('=') {
                return Err(JobError::VariableName { label: label(), name: name.clone() });
            }
        }
        let arguments = self.program_arguments.iter().map(|value| ("ProgramArguments", value));
        let variables = self.environment_variables.iter();
        let variables =
            variables.flat_map(|(name, value)| [name, value]).map(|text| ("EnvironmentVariables", text));
        let others = [
            ("UserName", &self.user_name),
            ("StandardOutPath", &self.standard_out_path),
            ("StandardErrorPath", &self.standard_error_path),
        ];
        let others = others.into_iter().filter_map(|(key, value)| value.as_ref().map(|value| (key, value)));
        for (key, value) in arguments.chain(variables).chain(others) {
            if value.chars().any(|c| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}')) {
                return Err(JobError::ControlCharacter { label: label(), key });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(arguments: &[&str]) -> Job {
        Job {
            label: "dev.example.job".parse().unwrap(),
            program_arguments: arguments.iter().map(ToString::to_string).collect(),
            user_name: None,
            environment_variables: BTreeMap::new(),
            run_at_load: true,
            keep_alive: false,
            start_interval: None,
            throttle_interval: None,
            exit_time_out: 5,
            abandon_process_group: false,
            process_type: ProcessType::Standard,
            standard_out_path: None,
            standard_error_path: None,
            soft_resource_limits: None,
            hard_resource_limits: None,
            umask: None,
        }
    }

    #[test]
    fn a_job_is_a_property_list_with_its_values_escaped() {
        let xml = String::from_utf8(job(&["/bin/x", "--a=<b>&'\""]).to_plist().unwrap()).unwrap();
        assert!(
            xml.starts_with("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE plist PUBLIC"),
            "{xml}"
        );
        assert!(xml.contains("<key>Label</key>\n\t<string>dev.example.job</string>"), "{xml}");
        assert!(xml.contains("&lt;b&gt;&amp;"), "{xml}");
        assert!(xml.contains("<key>ExitTimeOut</key>\n\t<integer>5</integer>"), "{xml}");
        assert!(!xml.contains("UserName") && xml.ends_with("</plist>\n"), "{xml}");
    }

    #[test]
    fn a_job_that_launchd_would_misread_is_refused() {
        let table: [(Job, &str); 6] = [
            (job(&[]), "has no program"),
            (job(&["bin/x"]), "`bin/x` in the job dev.example.job is no absolute path"),
            (Job { standard_error_path: Some("log".to_owned()), ..job(&["/x"]) }, "`log` in the job"),
            (job(&["/x", "a\nb"]), "ProgramArguments of the job dev.example.job has a control character"),
            (Job { user_name: Some("a\0".to_owned()), ..job(&["/x"]) }, "UserName of the job"),
            (
                Job { environment_variables: [("A=B".to_owned(), String::new())].into(), ..job(&["/x"]) },
                "`A=B` in the job dev.example.job is no name of an environment variable",
            ),
        ];
        for (job, words) in table {
            let error = job.to_plist().unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn a_property_list_with_an_unknown_key_is_no_job_of_ours() {
        let xml = String::from_utf8(job(&["/x"]).to_plist().unwrap()).unwrap();
        assert_eq!(Job::from_plist(xml.as_bytes()).unwrap(), job(&["/x"]));
        let foreign = xml.replace("<dict>", "<dict>\n<key>Nice</key>\n<integer>1</integer>");
        assert!(Job::from_plist(foreign.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn equal_jobs_are_equal_bytes_and_other_jobs_are_other_bytes(
            arguments in prop::collection::vec("\\PC{0,12}", 0..4),
            other in prop::collection::vec("\\PC{0,12}", 0..4),
            variables in prop::collection::btree_map("[A-Z_]{1,6}", "\\PC{0,12}", 0..4),
            umask in prop::option::of(0_u32..0o1000),
        ) {
            let make = |rest: &[String]| Job {
                program_arguments: std::iter::once("/bin/x".to_owned()).chain(rest.iter().cloned()).collect(),
                environment_variables: variables.clone(),
                umask,
                ..job(&[])
            };
            let xml = make(&arguments).to_plist().unwrap();
            prop_assert_eq!(&xml, &make(&arguments).to_plist().unwrap());
            prop_assert_eq!(Job::from_plist(&xml).unwrap(), make(&arguments));
            prop_assert_eq!(xml == make(&other).to_plist().unwrap(), arguments == other);
        }
    }
}
