//! A Mac for these tests: the simulated pf, real files under a directory, and as much of launchd as the firewall needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use launchd::{Access, Call, CallOutput, Host, HostError};
use pfctl_sim::{Fault, Mac};

const STOCK_PF_CONF: &str = "scrub-anchor \"com.apple/*\"\nnat-anchor \"com.apple/*\"\nrdr-anchor \"com.apple/*\"\n\
    dummynet-anchor \"com.apple/*\"\nanchor \"com.apple/*\"\n\
    load anchor \"com.apple\" from \"/etc/pf.anchors/com.apple\"\n";

/// A Mac whose files lie under a directory.
pub(crate) struct TestMac {
    pub(crate) pf: Mac,
    root: tempfile::TempDir,
    /// The loaded jobs.
    jobs: Mutex<BTreeSet<String>>,
    is_loader_root: AtomicBool,
}

impl TestMac {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let pf = Mac::new(&root.path().join("sim"), root.path());
        let mac = Self { pf, root, jobs: Mutex::default(), is_loader_root: AtomicBool::new(true) };
        for dir in ["/etc/pf.anchors", "/Library/LaunchDaemons", "/var/run", "/var/log", "/bin"] {
            fs::create_dir_all(mac.path(dir)).unwrap();
        }
        mac.write("/etc/pf.conf", STOCK_PF_CONF);
        // The script calls pfctl by its name.
        let pfctl = tart_kubelet_tests::programs::find("pfctl").unwrap();
        std::os::unix::fs::symlink(pfctl, mac.path("/bin/pfctl")).unwrap();
        mac
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        fs::write(self.path(path), text).unwrap();
    }

    pub(crate) fn pf_conf(&self) -> String {
        fs::read_to_string(self.path("/etc/pf.conf")).unwrap()
    }

    pub(crate) fn load_job(&self, label: &str) {
        self.jobs.lock().unwrap().insert(label.into());
    }

    pub(crate) fn is_loaded(&self, label: &str) -> bool {
        self.jobs.lock().unwrap().contains(label)
    }

    pub(crate) fn set_loader_as_other_user(&self, is_other: bool) {
        self.is_loader_root.store(!is_other, Ordering::Relaxed);
    }

    /// Restarts the Mac: pf is as after a boot, `/var/run` is empty, and launchd starts the jobs of `/Library/LaunchDaemons`.
    pub(crate) fn boot(&self) {
        self.pf.reboot().unwrap();
        fs::remove_dir_all(self.path("/var/run")).unwrap();
        fs::create_dir_all(self.path("/var/run")).unwrap();
        self.run_loader();
    }

    /// Runs the script as launchd does.
    pub(crate) fn run_loader(&self) {
        let script = fs::read_to_string(self.path(tart_provider::host::firewall::LOADER)).unwrap();
        // The Mac's files lie elsewhere here.
        let root = self.root.path().to_str().unwrap();
        let script = script
            .replace("'/etc/", &format!("'{root}/etc/"))
            .replace("'/var/", &format!("'{root}/var/"))
            .replace("sleep 1", "sleep 0");
        if !self.is_loader_root.load(Ordering::Relaxed) {
            self.pf.switch_on(Fault::NotRoot).unwrap();
        }
        let path = format!("{}:/usr/bin:/bin", self.path("/bin").display());
        Command::new("/bin/sh")
            .args(["-c", &script])
            .env("PATH", path)
            .env("TART_SIM_HOST", self.path("/sim"))
            .output()
            .unwrap();
        self.pf.switch_off(Fault::NotRoot).unwrap();
    }

    fn launchctl(&self, arguments: &[&str]) -> CallOutput {
        let code = match arguments {
            ["print", target] if self.is_loaded(target.trim_start_matches("system/")) => 0,
            ["print", _] => 113,
            ["bootout", target] => {
                self.jobs.lock().unwrap().remove(target.trim_start_matches("system/"));
                0
            }
            ["enable", _] => 0,
            ["bootstrap", "system", plist] => {
                let label = Path::new(plist).file_stem().unwrap().to_string_lossy().into_owned();
                assert!(self.path(plist).is_file(), "{plist}");
                self.jobs.lock().unwrap().insert(label);
                self.run_loader();
                0
            }
            ["kickstart", _] => {
                self.run_loader();
                0
            }
            other => panic!("launchctl {other:?}"),
        };
        CallOutput { code, stdout: String::new(), stderr: String::new() }
    }
}

impl Host for TestMac {
    async fn run(&self, call: Call<'_>) -> Result<CallOutput, HostError> {
        Ok(match call.argv {
            ["/sbin/pfctl", arguments @ ..] => {
                let output = self.pf.pfctl(arguments);
                CallOutput { code: output.code.into(), stdout: output.stdout, stderr: output.stderr }
            }
            ["/bin/launchctl", arguments @ ..] => self.launchctl(arguments),
            // The script that ends a job and loads it again.
            ["/bin/sh", "-c", _, "sh", "/bin/launchctl", domain, job, plist, _] => {
                self.launchctl(&["bootout", job]);
                let output = self.launchctl(&["bootstrap", domain, plist]);
                CallOutput { stdout: "bootstrap\n".to_owned(), ..output }
            }
            ["/bin/mkdir" | "/bin/rm", rest @ ..] => {
                let arguments = rest.iter().map(|argument| match argument.strip_prefix('/') {
                    Some(_) => self.path(argument).display().to_string(),
                    None => (*argument).to_owned(),
                });
                let output = Command::new(call.program()).args(arguments).output().unwrap();
                CallOutput {
                    code: output.status.code().unwrap(),
                    stdout: String::new(),
                    stderr: String::new(),
                }
            }
            other => panic!("{other:?}"),
        })
    }

    async fn read_file(&self, path: &str) -> Result<Option<Vec<u8>>, HostError> {
        Ok(fs::read(self.path(path)).ok())
    }

    async fn write_file(&self, path: &str, contents: &[u8], _access: &Access) -> Result<(), HostError> {
        fs::write(self.path(path), contents).unwrap();
        Ok(())
    }
}
