//! Runs that are broken off at any call, and what the next one makes of it.

use super::*;
use crate::host::memory_mac::Cut;

/// Takes Macs like `start` to a config, cuts the connection at each call, before the call and after it, has the next run go on, and looks at
/// the Mac.
async fn cut_everywhere(config: &HostConfig, start: MemoryMac) {
    let never_cut = start.copy();
    apply(&never_cut, config).await;
    for is_carried_out in [false, true] {
        let mut after = 0;
        loop {
            let mac = start.copy();
            let had_agent = mac.pid(AGENT_LABEL).is_some();
            mac.state().cut = Some(Cut { after, is_carried_out });
            let report = apply(&mac, config).await;
            let told = format!("call {after}, carried out: {is_carried_out}");
            if !mac.is_lost() {
                assert!(after > 20 && report.failed() == 0, "{told}: {report:?}");
                break;
            }
            // One step tells of it, and none after it is tried.
            assert_eq!(report.failed(), 1, "{told}: {report:?}");
            assert!(!had_agent || mac.pid(AGENT_LABEL).is_some(), "{told}: no agent runs");
            mac.state().reconnect();
            let report = apply(&mac, config).await;
            assert_eq!(report.failed(), 0, "{told}: {report:?}");
            assert_eq!(mac.settings_and_jobs(), never_cut.settings_and_jobs(), "{told}");
            assert_eq!(mac.files_unlike(&never_cut), [""; 0], "{told}");
            let again = apply(&mac, config).await;
            assert_eq!((again.changed(), again.failed()), (0, 0), "{told}: {again:?}");
            after += 1;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_cut_anywhere_in_a_bootstrap_is_healed_by_the_next_run() {
    let files = Files::new();
    cut_everywhere(&files.rich_config(), MemoryMac::new()).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_cut_anywhere_in_a_roll_is_healed_by_the_next_run() {
    let files = Files::new();
    let second = HostConfig {
        agent: files.artifact(b"agent 2"),
        settings: AgentSettings { max_pods: Some(1), ..AgentSettings::default() },
        ..files.rich_config()
    };
    cut_everywhere(&second, bootstrapped(&files.rich_config()).await).await;
}

/// The binary is in place, and the connection is cut before the restart: the bytes on the disk alone would say that all is done.
#[tokio::test(start_paused = true)]
async fn a_connection_that_is_cut_anywhere_in_a_roll_of_the_binary_alone_is_healed_by_the_next_run() {
    let files = Files::new();
    let second = HostConfig { agent: files.artifact(b"agent 2"), ..files.config() };
    cut_everywhere(&second, bootstrapped(&files.config()).await).await;
}

/// Cuts the connection at each call of a roll, and goes back to the first config. `look` looks at each Mac.
async fn cut_everywhere_and_go_back(
    first: &HostConfig,
    second: &HostConfig,
    look: impl Fn(&MemoryMac, &str),
) {
    let start = bootstrapped(first).await;
    for is_carried_out in [false, true] {
        for after in 0.. {
            let mac = start.copy();
            mac.state().cut = Some(Cut { after, is_carried_out });
            apply(&mac, second).await;
            if !mac.is_lost() {
                assert!(after > 20);
                break;
            }
            mac.state().reconnect();
            let told = format!("call {after}, carried out: {is_carried_out}");
            let report = apply(&mac, first).await;
            assert_eq!(report.failed(), 0, "{told}: {report:?}");
            look(&mac, &told);
            let again = apply(&mac, first).await;
            assert_eq!((again.changed(), again.failed()), (0, 0), "{told}: {again:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_roll_that_was_cut_anywhere_a_roll_back_leaves_the_old_binary_running() {
    let files = Files::new();
    let first = files.config();
    let start = bootstrapped(&first).await;
    let flags = AgentSettings { max_pods: Some(1), ..AgentSettings::default() };
    for second in [
        HostConfig { agent: files.artifact(b"agent 2"), ..files.config() },
        HostConfig { agent: files.artifact(b"agent 2"), settings: flags, ..files.config() },
    ] {
        cut_everywhere_and_go_back(&first, &second, |mac, told| {
            assert_eq!(mac.settings_and_jobs(), start.settings_and_jobs(), "{told}");
            assert_eq!(mac.bytes(PREVIOUS), None, "{told}");
        })
        .await;
    }
}

/// The process has read the second kubeconfig, and the file is the first one again.
#[tokio::test(start_paused = true)]
async fn after_a_roll_of_the_credential_that_was_cut_after_the_restart_a_roll_back_restarts_again() {
    let files = Files::new();
    let first = files.config();
    let credential = Credential::Kubeconfig(Secret::new(b"canary-second".to_vec()));
    let second = HostConfig { credential, ..files.config() };
    cut_everywhere_and_go_back(&first, &second, |mac, told| {
        let pushes = mac.state().pushes.clone();
        let last = |text: &str| pushes.iter().rposition(|push| push.contains(text));
        let written = last(&format!("write {AGENT_KUBECONFIG}"));
        assert!(last(RESTART).is_none_or(|restart| Some(restart) > written), "{told}: {pushes:#?}");
    })
    .await;
}

const PREVIOUS: &str = "/usr/local/bin/.tart-kubelet.previous";
const RESTART: &str = "kickstart -k system/dev.tuist.tart-kubelet";

/// The second agent has not proved itself when the third one comes.
#[tokio::test(start_paused = true)]
async fn the_binary_to_go_back_to_is_the_last_one_that_proved_itself() {
    let files = Files::new();
    let mac = bootstrapped(&files.config()).await;
    for (agent, is_cut_at) in [(&b"agent 2"[..], RESTART), (b"agent 3", RESTART)] {
        let config = HostConfig { agent: files.artifact(agent), ..files.config() };
        let copy = mac.copy();
        copy.state().calls.clear();
        roll(&copy, &config).await;
        let calls = copy.state().calls.iter().position(|call| call.contains(is_cut_at)).unwrap();
        mac.state().cut = Some(Cut { after: calls, is_carried_out: false });
        roll(&mac, &config).await;
        assert!(mac.is_lost());
        mac.state().reconnect();
        assert_eq!(mac.bytes(PREVIOUS).unwrap(), b"agent 1 signed");
    }
}

/// launchd says nothing of a job's umask.
#[tokio::test(start_paused = true)]
async fn a_definition_that_was_written_and_not_loaded_is_loaded_by_the_next_run() {
    let files = Files::new();
    let mac = bootstrapped(&files.config()).await;
    let wanted = mac.bytes(launchd::AGENT_PLIST).unwrap();
    mac.state().alter_job(AGENT_LABEL, |job| job.umask = Some(0));
    let old = mac.state().definition(AGENT_LABEL);
    // As it was before the roll that was broken off.
    let note = "/var/db/dev.tuist.tart-provider/dev.tuist.tart-kubelet.rolled";
    let noted = String::from_utf8(mac.bytes(note).unwrap()).unwrap();
    let (process, _) = noted.split_once(' ').unwrap();
    let noted = format!("{process} {}", crate::artifact::Sha256Hash::of(&old.to_plist().unwrap()));
    mac.write_file(note, noted.as_bytes(), &launchd::Access::root(0o644)).await.unwrap();
    let report = roll(&mac, &files.config()).await;
    assert_eq!((report.changed(), report.failed()), (1, 0), "{report:?}");
    assert_eq!(mac.state().definition(AGENT_LABEL).to_plist().unwrap(), wanted);
}

#[tokio::test(start_paused = true)]
async fn a_disabled_job_is_a_difference_and_enabled_without_a_restart() {
    let files = Files::new();
    let mac = bootstrapped(&files.config()).await;
    let pid = mac.pid(AGENT_LABEL);
    mac.state().disabled.insert(AGENT_LABEL.to_owned());
    let plan = converge(&mac, &files.config().steps(), &Mode::Plan, |_, _| ()).await;
    assert!(format!("{plan:?}").contains("disabled"), "{plan:?}");
    let report = roll(&mac, &files.config()).await;
    assert_eq!((report.changed(), report.failed()), (1, 0), "{report:?}");
    assert!(mac.state().disabled.is_empty() && mac.pid(AGENT_LABEL) == pid);
}

/// A step that is broken off by its own deadline leaves the Mac without the old agent.
#[test]
fn the_steps_with_a_job_have_time_for_a_roll_that_fails_and_puts_the_old_job_back() {
    let steps = Files::new().rich_config().steps();
    let jobs: Vec<_> = steps.iter().filter_map(|step| Some((step, step.job()?))).collect();
    assert_eq!(jobs.len(), 3);
    for (step, job) in jobs {
        assert!(step.deadline > launchd::longest_roll(job), "{}", step.name);
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_pushed_half_is_gone_when_it_is_switched_off() {
    let files = Files::new();
    let rich = HostConfig { actions_runner: None, ..files.rich_config() };
    let base = bootstrapped(&files.config()).await;
    for after in 0.. {
        let mac = base.copy();
        mac.state().cut = Some(Cut { after, is_carried_out: true });
        apply(&mac, &rich).await;
        let is_over = !mac.is_lost();
        mac.state().reconnect();
        let report = apply(&mac, &files.config()).await;
        assert_eq!(report.failed(), 0, "call {after}: {report:?}");
        // The directory may have been there before.
        let left: Vec<String> =
            mac.files_unlike(&base).into_iter().filter(|path| path != "/etc/resolver").collect();
        assert_eq!(left, [""; 0], "call {after}");
        if is_over {
            assert!(after > 40);
            break;
        }
    }
}
