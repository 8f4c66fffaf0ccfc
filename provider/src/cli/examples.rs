//! Examples, which end each command's help. A person reads them before the flags.

pub(super) const PROVIDER: &str = "\
Examples:
  One Mac, over SSH, from nothing to a Node: the steps are in
    tart-provider host --help
  A fleet of Macs, by Cluster API: the Helm chart runs
    tart-provider manager

Exit codes: 0 when it is done, 1 when a step failed on a Mac, 2 when nothing could be done.";

pub(super) const HOST: &str = "\
Examples: a Mac from nothing to a Node
  1. tart-provider host prepare --ssh m1@mac-1 -i ~/.ssh/fleet
     asks for the password of m1 once; afterwards the key is enough
  2. tart-provider host plan --ssh m1@mac-1 -i ~/.ssh/fleet --node-name mac-1 \\
         --agent-binary tart-kubelet --bootstrap-kubeconfig bootstrap-kubeconfig
     shows what would be changed
  3. tart-provider host apply …         with the same flags: changes it, and can be run again at any time
  4. tart-provider host roll …          later, with a new --agent-binary or other flags

The user of --ssh is the one that is logged in at the Mac's screen: macOS starts VMs for no other.";

pub(super) const PREPARE: &str = "\
Examples:
  It asks for the password of m1:
    tart-provider host prepare --ssh m1@mac-1 -i ~/.ssh/fleet
  For a program, with the Mac's host key pinned:
    tart-provider host prepare --ssh m1@mac-1 -i ~/.ssh/fleet --known-hosts ~/.ssh/known_hosts --password-stdin <password

Exit codes: 0 when the Mac is prepared, 1 when a step failed, 2 when nothing could be done.";

pub(super) const CONFIG: &str = "\
Examples:
  One Mac:
    tart-provider host apply --ssh m1@mac-1 -i ~/.ssh/fleet --node-name mac-1 \\
        --agent-binary tart-kubelet --bootstrap-kubeconfig bootstrap-kubeconfig
  Several Macs, four at a time. Each names its Node; a Mac that fails keeps the next ones from being begun:
    tart-provider host roll --ssh mac-1=m1@10.0.0.1 --ssh mac-2=m1@10.0.0.2 --known-hosts ~/.ssh/known_hosts …
  For a program, the Macs that differ:
    tart-provider host plan -o json … | jq -r '.macs[] | select(.result == \"differs\") | .node'

Exit codes: 0 when every Mac is as it should be (or the plan is shown), 1 when a step failed, 2 when nothing could be done.
Run the same command again to go on: steps that are done are skipped.";

pub(super) const MANAGER: &str = "\
Examples:
  With Scaleway's Macs as the pool. Free ones have names that begin with the prefix:
    SCW_SECRET_KEY=… SCW_DEFAULT_PROJECT_ID=… tart-provider manager --default-adopt-pool-prefix tart-pool-
  With Macs of one's own, which the Secret lists:
    tart-provider manager --mac-list macs --secrets-namespace fleet
  Outside the cluster, with programs from this machine:
    tart-provider manager --kubeconfig ~/.kube/config --leader-elect=false --tartkubelet-binary-path tart-kubelet …

In a cluster the Helm chart starts it, with these flags made from its values.";

pub(super) const COMPLETIONS: &str = "\
Examples:
  bash, in ~/.bashrc:
    source <(tart-provider completions bash)
  zsh, into a directory of $fpath:
    tart-provider completions zsh >~/.zfunc/_tart-provider
  fish:
    tart-provider completions fish >~/.config/fish/completions/tart-provider.fish";

pub(super) const MAN: &str = "\
Examples:
  A page for each command, and one of them:
    tart-provider man ~/.local/share/man/man1
    man tart-provider-host-apply";
