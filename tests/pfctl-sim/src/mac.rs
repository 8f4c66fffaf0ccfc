//! The Mac around the packet filter: where the kernel's state is kept, its files, its interfaces and Internet Sharing.

use std::env;
use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::evaluate::{Packet, Verdict};
use crate::fault::{Fault, FaultError, Faults};
use crate::kernel::{Interface, Kernel, Reference, Ruleset};
use crate::load;
use crate::output::Output;
use crate::rule::Direction;
use crate::syntax;

/// What macOS ships as `/etc/pf.conf`.
pub(crate) const PF_CONF: &str = "scrub-anchor \"com.apple/*\"\nnat-anchor \"com.apple/*\"\nrdr-anchor \"com.apple/*\"\n\
    dummynet-anchor \"com.apple/*\"\nanchor \"com.apple/*\"\n\
    load anchor \"com.apple\" from \"/etc/pf.anchors/com.apple\"\n";

/// What macOS ships as `/etc/pf.anchors/com.apple`.
const COM_APPLE: &str = "anchor \"200.AirDrop/*\"\nanchor \"250.ApplicationFirewall/*\"\n";

/// The anchor that Internet Sharing puts into the main ruleset while VMs run.
const INTERNET_SHARING: &str = "com.apple.internet-sharing";

/// A simulated Mac, as far as pf is concerned.
#[derive(Debug, Clone)]
pub struct Mac {
    dir: PathBuf,
    root: PathBuf,
}

/// Where a packet ends up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// The Mac itself receives it.
    Host(Packet),
    /// The Mac sends it at this interface.
    Sent(String, Packet),
    /// This rule blocks it.
    Blocked(String),
}

impl Delivery {
    /// Whether no rule blocks the packet.
    pub fn is_allowed(&self) -> bool {
        !matches!(self, Self::Blocked(_))
    }
}

impl Mac {
    /// The Mac of this `TART_SIM_HOST`, whose files lie under `root`.
    pub fn new(host: &Path, root: &Path) -> Self {
        Self { dir: host.join("pf"), root: root.to_owned() }
    }

    /// The Mac of `TART_SIM_HOST`. Its files lie under `PFCTL_SIM_ROOT`, or else under `/`.
    pub fn from_env() -> Self {
        let host = env::var_os("TART_SIM_HOST")
            .filter(|path| !path.is_empty())
            .map_or_else(|| env::temp_dir().join("tart-sim-host"), PathBuf::from);
        let root = env::var_os("PFCTL_SIM_ROOT").map_or_else(|| "/".into(), PathBuf::from);
        Self::new(&host, &root)
    }

    /// Switches a fault on.
    pub fn switch_on(&self, fault: Fault) -> Result<(), FaultError> {
        self.faults().switch_on(fault)
    }

    /// Switches a fault off.
    pub fn switch_off(&self, fault: Fault) -> Result<(), FaultError> {
        self.faults().switch_off(fault)
    }

    /// The arguments of each call while [`Fault::Calls`] was on, a line each.
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.calls_path()).unwrap_or_default();
        text.lines().map(Into::into).collect()
    }

    pub(crate) fn calls_path(&self) -> PathBuf {
        self.dir.join("calls")
    }

    pub(crate) fn faults(&self) -> Faults {
        Faults::new(&self.dir)
    }

    /// A file of this Mac.
    pub(crate) fn read(&self, path: &str) -> io::Result<String> {
        let found = fs::read_to_string(self.path(path));
        match (path, found) {
            // A Mac has them, whether or not the simulated root brings them.
            ("/etc/pf.conf", Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(PF_CONF.into()),
            ("/etc/pf.anchors/com.apple", Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                Ok(COM_APPLE.into())
            }
            (_, found) => found,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        match path.strip_prefix('/') {
            Some(relative) => self.root.join(relative),
            None => path.into(),
        }
    }

    /// What the kernel knows now.
    pub fn kernel(&self) -> io::Result<Kernel> {
        self.update(|kernel| kernel.clone())
    }

    /// Changes what the kernel knows. Other processes wait meanwhile.
    pub fn update<T>(&self, change: impl FnOnce(&mut Kernel) -> T) -> io::Result<T> {
        fs::create_dir_all(&self.dir)?;
        let lock = File::create(self.dir.join("lock"))?;
        lock.lock()?;
        let path = self.dir.join("kernel.json");
        let mut kernel = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.booted(default_interfaces()),
            Err(error) => return Err(error),
        };
        let result = change(&mut kernel);
        let temporary = self.dir.join("kernel.json.new");
        fs::write(&temporary, serde_json::to_vec(&kernel)?)?;
        fs::rename(&temporary, &path)?;
        Ok(result)
    }

    /// Restarts the Mac: pf is off, and has the rules of `/etc/pf.conf` and no other.
    pub fn reboot(&self) -> io::Result<()> {
        self.update(|kernel| *kernel = self.booted(physical(&kernel.interfaces)))
    }

    /// A kernel after its start. A pf.conf that pfctl refuses leaves the main ruleset empty.
    fn booted(&self, interfaces: Vec<Interface>) -> Kernel {
        let mut kernel = Kernel { interfaces, ..Kernel::default() };
        if let Ok(files) = load::read(self, "/etc/pf.conf", "", &kernel) {
            let mut loaded = kernel.clone();
            if load::commit(&mut loaded, files, false).is_ok() {
                kernel = loaded;
            }
        }
        kernel
    }

    /// Adds an interface, or changes its addresses.
    pub fn set_interface(&self, interface: Interface) -> io::Result<()> {
        self.update(|kernel| {
            kernel.interfaces.retain(|known| known.name != interface.name);
            kernel.interfaces.push(interface);
        })
    }

    /// What macOS does when the first VM starts: the bridge appears, pf is switched on, and the main ruleset gets the anchors that
    /// translate the VMs' addresses.
    pub fn start_internet_sharing(&self) -> io::Result<()> {
        self.set_interface(Interface::new("bridge100", &["192.168.64.1/24"]))?;
        self.update(|kernel| {
            if kernel.references.iter().any(|reference| reference.process == "InternetSharing") {
                return;
            }
            let mut sharing =
                rules_of(&format!("nat-anchor \"{INTERNET_SHARING}/*\"\nanchor \"{INTERNET_SHARING}/*\"\n"));
            let main = kernel.ruleset("");
            // Translation comes before filtering, as in any ruleset.
            main.rules.append(&mut sharing.rules);
            main.rules.sort_by_key(|rule| rule.kind.section());
            let nat = "no nat on bridge100 inet from 192.168.64.1 to 192.168.64.0/24\n\
                       nat on en0 inet from 192.168.64.0/24 to any -> (en0:0) extfilter ei\n";
            kernel.rulesets.insert(format!("{INTERNET_SHARING}/shared_v4"), rules_of(nat));
            take_reference(kernel, 1, "InternetSharing");
        })
    }

    /// Whether VMs reach the internet: the rules that translate their addresses are evaluated.
    pub fn is_vm_nat_working(&self) -> io::Result<bool> {
        let vm = IpAddr::from([192, 168, 64, 250]);
        let packet = Packet::new(crate::Protocol::Tcp, (vm, 50000), (IpAddr::from([198, 51, 100, 9]), 443));
        let mut kernel = self.kernel()?;
        Ok(matches!(kernel.filter(Direction::Out, "en0", packet), Verdict::Pass(sent) if sent.source != vm))
    }

    /// What becomes of a packet that the Mac receives at an interface.
    pub fn receive(&self, interface: &str, packet: Packet) -> io::Result<Delivery> {
        self.update(|kernel| match kernel.filter(Direction::In, interface, packet) {
            Verdict::Block(rule) => Delivery::Blocked(rule),
            Verdict::Pass(packet) if is_for_host(kernel, packet.destination) => Delivery::Host(packet),
            Verdict::Pass(packet) => sent(kernel, packet),
        })
    }

    /// What becomes of a packet that the Mac sends.
    pub fn send(&self, packet: Packet) -> io::Result<Delivery> {
        self.update(|kernel| sent(kernel, packet))
    }

    /// Runs `pfctl` with these arguments in this process.
    pub fn pfctl(&self, arguments: &[&str]) -> Output {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        crate::run(self, &arguments)
    }
}

fn is_for_host(kernel: &Kernel, address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    is_broadcast || kernel.interfaces.iter().any(|interface| interface.addresses.contains(&address))
}

fn sent(kernel: &mut Kernel, packet: Packet) -> Delivery {
    let reaches =
        |interface: &&Interface| interface.networks.iter().any(|net| net.contains(packet.destination));
    let direct = kernel.interfaces.iter().find(reaches);
    let interface = direct.map_or_else(|| "en0".to_owned(), |interface| interface.name.clone());
    match kernel.filter(Direction::Out, &interface, packet) {
        Verdict::Pass(packet) => Delivery::Sent(interface, packet),
        Verdict::Block(rule) => Delivery::Blocked(rule),
    }
}

fn default_interfaces() -> Vec<Interface> {
    vec![Interface::new("lo0", &["127.0.0.1/8", "::1"]), Interface::new("en0", &["203.0.113.7/24"])]
}

/// The bridges of VMs are gone after a restart.
fn physical(interfaces: &[Interface]) -> Vec<Interface> {
    interfaces.iter().filter(|interface| !interface.name.starts_with("bridge1")).cloned().collect()
}

/// The rules of a text that is known to be right.
fn rules_of(text: &str) -> Ruleset {
    let rules = syntax::parse(text, &[]).map(|file| file.rules).unwrap_or_default();
    Ruleset { rules, ..Ruleset::default() }
}

/// Asks for pf to be on; returns the token of the request.
pub(crate) fn take_reference(kernel: &mut Kernel, pid: u32, process: &str) -> u64 {
    let (token, now) = (fastrand::u64(1_000_000_000..), now());
    kernel.references.push(Reference { pid, process: process.into(), token, taken_at: now });
    kernel.enabled_at.get_or_insert(now);
    token
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
