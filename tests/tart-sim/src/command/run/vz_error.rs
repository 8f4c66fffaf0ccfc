//! What the virtualization framework's errors look like when they are printed.

/// An error of `VZErrorDomain`: its code, its kind and its reason.
fn error(code: i32, failure: &str, reason: &str) -> String {
    format!(
        "Error Domain=VZErrorDomain Code={code} \"{reason}\" UserInfo={{NSLocalizedFailure={failure}, NSLocalizedFailureReason={reason}}}"
    )
}

/// The same, caused by a failed system call.
fn error_because(code: i32, failure: &str, reason: &str, (posix_code, posix_text): (i32, &str)) -> String {
    format!(
        "Error Domain=VZErrorDomain Code={code} \"{reason}\" UserInfo={{NSLocalizedFailure={failure}, \
         NSLocalizedFailureReason={reason}, NSUnderlyingError=0x{:x} {{Error Domain=NSPOSIXErrorDomain Code={posix_code} \
         \"{posix_text}\"}}}}",
        address()
    )
}

/// The address of an object.
fn address() -> u64 {
    0x6000_0000_0000 | fastrand::u64(0..1 << 32) & !0xf
}

const INTERNAL: &str = "Internal Virtualization error.";
const INVALID: &str = "Invalid virtual machine configuration.";

/// The framework could not start the VM, for instance because no user is logged in at the Mac's screen.
pub(super) fn failed_to_start() -> String {
    error(1, INTERNAL, "The virtual machine failed to start.")
}

/// The framework could not use the login keychain.
pub(super) fn host_key(reason: &str) -> String {
    error(-9, INTERNAL, reason)
}

/// Another process has the VM's NVRAM.
pub(super) fn auxiliary_storage_locked() -> String {
    error_because(2, INVALID, "Failed to lock auxiliary storage.", (35, "Resource temporarily unavailable"))
}

/// A shared directory is missing, or is no directory.
pub(super) fn invalid_share(posix: (i32, &str)) -> String {
    error_because(2, INVALID, "A directory sharing device configuration is invalid.", posix)
}

/// As many macOS guests run as the Mac allows, in the words of releases before 2.18.1.
pub(super) fn limit_exceeded() -> String {
    error(
        6,
        "The number of virtual machines exceeds the limit.",
        "The maximum supported number of active virtual machines has been reached.",
    )
}

/// The VM stopped because the host's disk is full. The words are a guess; the code is not.
pub(super) fn out_of_disk_space() -> String {
    error(8, "The virtual machine stopped.", "There is not enough disk space.")
}

/// The guest's kernel panicked, or its process died.
pub(super) fn stopped_unexpectedly() -> String {
    error(1, INTERNAL, "The virtual machine stopped unexpectedly.")
}

/// A network device lost its attachment: the device, then the error.
pub(super) fn network_lost() -> (String, String) {
    (format!("<VZNetworkDevice: 0x{:x}>", address()), error(1, INTERNAL, "Internal Network Error."))
}

/// A snapshot could not be loaded.
pub(super) fn failed_to_restore() -> String {
    error(
        12,
        "An error occurred while restoring the virtual machine.",
        "The virtual machine failed to restore with error “invalid argument”.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_captured_ones_do() {
        assert_eq!(
            failed_to_start(),
            "Error Domain=VZErrorDomain Code=1 \"The virtual machine failed to start.\" \
             UserInfo={NSLocalizedFailure=Internal Virtualization error., \
             NSLocalizedFailureReason=The virtual machine failed to start.}"
        );
        let locked = auxiliary_storage_locked();
        assert!(locked.starts_with(
            "Error Domain=VZErrorDomain Code=2 \"Failed to lock auxiliary storage.\" UserInfo={"
        ));
        assert!(
            locked
                .ends_with("{Error Domain=NSPOSIXErrorDomain Code=35 \"Resource temporarily unavailable\"}}")
        );
    }
}
