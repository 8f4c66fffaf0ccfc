//! The archive of a simulated GitHub Actions runner: the scripts by which the real one is registered and becomes a job.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use crate::programs;

/// Notes the call where a simulated Mac keeps them.
const NOTE: &str = r#"#!/bin/sh
[ -w /System/Simulator/calls ] && echo "$(basename "$0") $*" >>/System/Simulator/calls
[ "$(id -u)" != 0 ] || { echo 'Must not run with sudo' >&2; exit 1; }
"#;

/// `config.sh`: tokens begin with `AAAA`, and one that does not is one that GitHub does not know.
const CONFIG: &str = r#"[ ! -e .runner ] || { echo "Cannot configure the runner because it is already configured. To reconfigure the runner, run 'config.cmd remove' or './config.sh remove' first." >&2; exit 1; }
url= name= labels= token=${ACTIONS_RUNNER_INPUT_TOKEN-} unattended=
while [ $# -gt 0 ]; do
    case $1 in
    --unattended) unattended=1 ;;
    --replace) ;;
    --url) url=$2; shift ;;
    --name) name=$2; shift ;;
    --work) shift ;;
    --labels) labels=$2; shift ;;
    --token) token=$2; shift ;;
    *) echo "Unrecognized command-line input arguments: '${1#--}'. For usage refer to: .\config.cmd --help or ./config.sh --help" >&2; exit 1 ;;
    esac
    shift
done
[ -n "$unattended" ] || { echo 'mac-sim: only --unattended is simulated' >&2; exit 78; }
[ -n "$url" ] && [ -n "$token" ] || { echo 'Invalid configuration provided for url or token. Terminating unattended configuration.' >&2; exit 1; }
case $token in
AAAA*) ;;
*) echo "Http response code: NotFound from 'POST https://api.github.com/actions/runner-registration'" >&2; exit 1 ;;
esac
umask 077
echo "{\"agentName\": \"$name\", \"gitHubUrl\": \"$url\", \"labels\": \"$labels\"}" >.runner
echo '{"scheme": "OAuth"}' >.credentials
echo '{}' >.credentials_rsaparams
echo "$PATH" >.path
echo '√ Runner successfully added'
"#;

/// `svc.sh`: it writes the job, and cannot load it over SSH.
const SERVICE: &str = r#"[ -e .runner ] || { echo 'Must run from runner root' >&2; exit 1; }
field() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" .runner; }
scope=$(field gitHubUrl | sed -e 's|^https://[^/]*/||' -e 's|/|-|g')
label=actions.runner.$scope.$(field agentName)
plist=$HOME/Library/LaunchAgents/$label.plist
case $1 in
install)
    [ ! -e "$plist" ] || { echo "Failed: error: exists $plist" >&2; exit 1; }
    mkdir -p "$HOME/Library/LaunchAgents" "$HOME/Library/Logs/$label"
    cat >"$plist" <<END
<?xml version="1.0" encoding="UTF-8"?>
<plist version="1.0"><dict>
<key>Label</key><string>$label</string>
<key>ProgramArguments</key><array><string>$PWD/runsvc.sh</string></array>
<key>UserName</key><string>$(id -un)</string>
<key>WorkingDirectory</key><string>$PWD</string>
<key>RunAtLoad</key><true/>
<key>StandardOutPath</key><string>$HOME/Library/Logs/$label/stdout.log</string>
<key>StandardErrorPath</key><string>$HOME/Library/Logs/$label/stderr.log</string>
<key>EnvironmentVariables</key><dict><key>ACTIONS_RUNNER_SVC</key><string>1</string></dict>
<key>ProcessType</key><string>Interactive</string>
</dict></plist>
END
    echo "$plist" >.service ;;
start) echo 'Load failed: 5: Input/output error' >&2; exit 1 ;;
*) echo "mac-sim: svc.sh $1 is not simulated" >&2; exit 78 ;;
esac
"#;

/// The job: it has the search path of `.path`.
const RUN: &str = r#"cd "$(dirname "$0")" || exit 1
[ -e .credentials ] || exit 1
PATH=$(cat .path) && export PATH
echo "runs with $PATH"
while :; do /bin/sleep 1; done
"#;

/// Makes the archive in a directory.
pub fn archive(directory: &Path) -> Result<PathBuf> {
    let root = directory.join("runner");
    std::fs::create_dir_all(&root)?;
    let scripts = [("config.sh", CONFIG), ("svc.sh", SERVICE), ("runsvc.sh", RUN)];
    for (name, script) in scripts {
        programs::write(&root.join(name), &format!("{NOTE}{script}"))?;
    }
    let archive = directory.join("actions-runner-osx-arm64.tar.gz");
    let made = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(&root).arg(".").status()?;
    ensure!(made.success(), "cannot make {}", archive.display());
    Ok(archive)
}
