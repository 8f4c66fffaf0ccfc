//! What programs read of `tart-provider host`, and its exit code 1.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::scene::{Said, Scene};

/// The one Mac of the object that was printed.
fn mac(said: &Said) -> Result<Value> {
    let object: Value = serde_json::from_str(&said.stdout).with_context(|| format!("{said:?}"))?;
    ensure!(object["macs"].as_array().is_some_and(|macs| macs.len() == 1), "{object}");
    Ok(object["macs"][0].clone())
}

/// The step with a name.
fn step<'a>(mac: &'a Value, name: &str) -> Result<&'a Value> {
    let mut steps = mac["steps"].as_array().into_iter().flatten();
    steps.find(|step| step["name"] == name).with_context(|| format!("no step {name} in {mac}"))
}

#[tokio::test]
async fn a_program_reads_how_a_mac_fares() -> Result<()> {
    let Some(scene) = Scene::new("fleet-json").await? else { return Ok(()) };
    let said = scene.host("plan", scene.agent(), &["-o", "json"]).await?;
    let plan = mac(&said)?;
    assert_eq!(
        (said.status.code(), &plan["result"], &plan["node"]),
        (Some(0), &"differs".into(), &"fleet-json".into())
    );
    ensure!(plan["hostKey"].as_str().is_some_and(|key| key.starts_with("SHA256:")), "{plan}");
    let sudo = step(&plan, "passwordless sudo")?;
    ensure!(sudo["result"] == "differs" && sudo["changes"][0]["wanted"].is_string(), "{sudo}");

    let said = scene.host("apply", scene.agent(), &["-o=json"]).await?;
    let applied = mac(&said)?;
    assert_eq!((said.status.code(), &applied["result"]), (Some(0), &"changed".into()), "{applied}");
    scene.until_ready().await?;
    let again = mac(&scene.host("roll", scene.agent(), &["-o=json"]).await?)?;
    assert_eq!(again["result"], "unchanged", "{again}");
    assert_eq!(again["configuration"], applied["configuration"]);

    let said = scene.host("roll", Path::new("/usr/bin/false"), &["-o=json"]).await?;
    let failed = mac(&said)?;
    assert_eq!((said.status.code(), &failed["result"]), (Some(1), &"failed".into()), "{failed}");
    let binary = step(&failed, "agent's binary")?;
    let error = binary["error"].as_str().unwrap_or_default();
    ensure!(binary["result"] == "failed" && error.contains("`--version` ended with 1"), "{binary}");
    assert_eq!(step(&failed, "agent")?["result"], "skipped");
    Ok(())
}

#[tokio::test]
async fn a_mac_that_is_not_reached_is_an_object_too() -> Result<()> {
    let Some(scene) = Scene::new("fleet-json-away").await? else { return Ok(()) };
    let key = format!("--host-key=SHA256:{}", "A".repeat(43));
    let said = scene.host("plan", scene.agent(), &["-o=json", &key]).await?;
    let refused = mac(&said)?;
    assert_eq!((said.status.code(), &refused["result"]), (Some(2), &"refused".into()), "{refused}");
    let error = refused["error"].as_str().context("no error")?;
    ensure!(said.stderr.contains(error), "{said:?}");
    assert_eq!(refused["steps"], Value::Array(Vec::new()));
    Ok(())
}
