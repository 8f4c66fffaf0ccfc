//! Examples, which end each command's help. A person reads them before the flags.

pub(super) const AGENT: &str = "\
Examples:
  This Mac becomes a Node, with what `kubeadm token create --print-join-command` prints:
    sudo tart-kubelet join 10.0.0.1:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:…
  How are the agent and its Node, and what does this Mac lack:
    sudo tart-kubelet status
    tart-kubelet doctor
  The agent itself, as its launchd job starts it:
    tart-kubelet --kubeconfig /etc/tart-kubelet/kubeconfig --node-name mac-1

Exit codes: 0 when it is done, 1 when `doctor` finds something broken or `images pull` lacks an image, 2 when nothing could be done.";

pub(super) const GC: &str = "\
Examples:
  What would be deleted, and why is the rest kept:
    sudo tart-kubelet gc --dry-run
  The same for a program, with the names of what would go:
    sudo tart-kubelet gc --dry-run -o json | jq -r '.[] | select(.decision == \"delete\") | .name'

Give the flags that the agent is started with, such as --state-dir, where they are not the usual ones.";

pub(super) const IMAGES: &str = "\
Examples:
  An image is here before a Pod needs it:
    tart-kubelet images pull ghcr.io/cirruslabs/macos-sequoia-base:latest
  What is here, and who pulled it:
    tart-kubelet images list";

pub(super) const IMAGES_PULL: &str = "\
Examples:
  Two images, one after the other:
    tart-kubelet images pull ghcr.io/cirruslabs/macos-sequoia-base:latest ghcr.io/cirruslabs/macos-sequoia-xcode:16
  A private image:
    tart-kubelet images pull --docker-config ~/.docker/config.json registry.example.com/macos/base:1
  For a program, an object a line:
    tart-kubelet images pull -o json ghcr.io/cirruslabs/macos-sequoia-base:latest

Exit codes: 0 when all images are here, 1 when one could not be pulled, 2 when none could be asked for.";

pub(super) const IMAGES_LIST: &str = "\
Examples:
  As a table:
    tart-kubelet images list
  For a program, with the bytes of all images:
    tart-kubelet images list -o json | jq '[.[].sizeBytes // 0] | add'";

pub(super) const JOIN: &str = "\
Examples:
  With what `kubeadm token create --print-join-command` prints, and flags of the agent after it:
    sudo tart-kubelet join 10.0.0.1:6443 --token abcdef.0123456789abcdef --discovery-token-ca-cert-hash sha256:… --max-pods 1
  No other user of this Mac sees the token:
    sudo tart-kubelet join 10.0.0.1:6443 --token-file - --discovery-token-ca-cert-hash sha256:… <token
  What would be done:
    tart-kubelet join 10.0.0.1:6443 --token-file token --discovery-token-ca-cert-hash sha256:… --dry-run

It can be run again at any time: a run that was broken off is finished by the next one.";

pub(super) const INSTALL: &str = "\
Examples:
  With a kubeconfig of this Node's own:
    sudo tart-kubelet install --kubeconfig mac-1.kubeconfig --node-name mac-1
  With a kubeconfig that may only ask for a certificate:
    sudo tart-kubelet install --bootstrap-kubeconfig bootstrap.kubeconfig
  What would be done:
    tart-kubelet install --kubeconfig mac-1.kubeconfig --dry-run

It can be run again at any time, also to bring the agent to another release or to other flags.";

pub(super) const LEAVE: &str = "\
Examples:
  The Node's Pods end first, for up to half an hour:
    sudo tart-kubelet leave --drain --drain-timeout 30m
  At once. VMs run on:
    sudo tart-kubelet leave --force";

pub(super) const DOCTOR: &str = "\
Examples:
  What this Mac lacks:
    tart-kubelet doctor
  The same, with what can be mended mended first:
    sudo tart-kubelet doctor --fix
  For a program, only what is broken:
    tart-kubelet doctor -o json | jq '.[] | select(.level == \"broken\")'

Exit codes: 0 when nothing is broken, 1 when something is, 2 when this Mac could not be looked at.";

pub(super) const STATUS: &str = "\
Examples:
  The job, the Node and the VMs:
    sudo tart-kubelet status
  For a program:
    sudo tart-kubelet status -o json | jq .node";

pub(super) const COMPLETIONS: &str = "\
Examples:
  bash, in ~/.bashrc:
    source <(tart-kubelet completions bash)
  zsh, into a directory of $fpath:
    tart-kubelet completions zsh >~/.zfunc/_tart-kubelet
  fish:
    tart-kubelet completions fish >~/.config/fish/completions/tart-kubelet.fish

Homebrew's formula has done this already.";

pub(super) const MAN: &str = "\
Examples:
  A page for each command, and one of them:
    tart-kubelet man ~/.local/share/man/man1
    man tart-kubelet-join";
