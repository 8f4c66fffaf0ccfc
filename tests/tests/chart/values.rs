//! Values that tests render the chart with.

/// A name, and what it sets.
pub(crate) type Toggle = (&'static str, &'static [&'static str]);

/// Each switch of the chart. What it changes is in `golden/`.
pub(crate) const TOGGLES: &[Toggle] = &[
    ("macos-fleet", &["macosFleet.enabled=true", "macosFleet.replicas=3"]),
    ("runners-fleet", &[r#"runnersFleet={"enabled":true,"hostCount":9,"adoptPoolPrefix":"runner-pool-"}"#]),
    (
        "builders-fleet",
        &[
            r#"buildersFleet={"enabled":true,"replicas":2,"ghRunnerVersion":"2.336.0"}"#,
            r#"buildersFleet.machine={"zone":"fr-par-3","hostCPU":4,"hostMemoryMB":14336}"#,
        ],
    ),
    (
        "active-reclaim",
        &[
            "macosFleet.enabled=true",
            "macosFleet.orphanReclaim.activeReclaim=true",
            r#"runnersFleet={"enabled":true,"machine":{"zone":"fr-par-3"}}"#,
        ],
    ),
    ("mac-list", &[r#"pool.macList.secretName="macs""#]),
    (
        "external-secrets",
        &[
            "capi.remoteKubeconfig.externalSecrets.enabled=true",
            "pool.scaleway.externalSecret.enabled=true",
            r#"buildersFleet={"enabled":true,"ghRunnerVersion":"2.336.0","externalSecret":{"enabled":true}}"#,
        ],
    ),
    ("fullname", &[r#"fullnameOverride="old-name""#, "macosFleet.enabled=true"]),
    ("no-cluster", &["capi.enabled=false"]),
    ("no-node-bootstrap", &["nodeBootstrap.enabled=false"]),
    ("pod-monitor", &[r#"metrics.podMonitor={"enabled":true,"labels":{"release":"prometheus"}}"#]),
    ("service-monitor", &["metrics.serviceMonitor.enabled=true"]),
    (
        "provider",
        &[
            r#"provider={"apiServerURL":"https://10.0.0.1:6443","replicas":1,"maxConcurrentReconciles":8}"#,
            r#"provider.tartKubelet={"hostCPU":8,"hostMemoryMB":14336,"maxPods":3,"flags":["--allowed-host-path=/opt/cache"]}"#,
            r#"provider.tart={"archivePath":"/opt/tart/tart.tar.gz","version":"2.30.0"}"#,
            r#"provider.nodeExporter={"path":"/opt/node_exporter"}"#,
            r#"provider.actionsRunner.path="/opt/tart/actions-runner.tar.gz""#,
            r#"provider.tailscale={"path":"/opt/tart/tailscale","daemonPath":"/opt/tart/tailscaled","authKeySecretName":"tailnet"}"#,
            r#"provider.tailscale={"tags":["tag:mac","tag:ci"],"acceptRoutes":true}"#,
            r#"provider.allowVMDestinations=["tcp 10.1.2.3 443"]"#,
            r#"provider.extraArgs=["--bootstrap-max-attempts=4"]"#,
            r#"provider.initContainers=[{"name":"tart","image":"curl","volumeMounts":[{"name":"tart","mountPath":"/opt/tart"}]}]"#,
            r#"provider.extraVolumes=[{"name":"tart","emptyDir":{}}]"#,
            r#"provider.extraVolumeMounts=[{"name":"tart","mountPath":"/opt/tart"}]"#,
            r#"provider.tolerations=[{"operator":"Exists"}]"#,
            r#"provider.imagePullSecrets=[{"name":"registry"}]"#,
            r#"provider.priorityClassName="system-cluster-critical""#,
        ],
    ),
];

/// Switches whose objects have files of the chart in them. Golden files have the names of those.
pub(crate) const FROM_FILES: &[Toggle] = &[
    ("prometheus-rule", &[r#"metrics.prometheusRule={"enabled":true,"labels":{"release":"prometheus"}}"#]),
    ("dashboards", &["metrics.dashboards.enabled=true"]),
];

/// All of them, and none.
pub(crate) fn all() -> impl Iterator<Item = &'static Toggle> {
    TOGGLES.iter().chain(FROM_FILES).chain(&[("default", &[] as &[&str])])
}

/// What is refused, and the words.
pub(crate) const REFUSED: &[(&[&str], &str)] = &[
    (&["macosflet.enabled=true"], "additional properties 'macosflet' not allowed"),
    (&[r#"provider.replicas="two""#], "'/provider/replicas': got string, want integer"),
    (
        &[r#"macosFleet.machine.os="macos-tahoe-26.3""#],
        "macosFleet.machine.os is `macos-tahoe-26.3`, and not the release",
    ),
    (
        &[r#"macosFleet.machine.zone="fr par""#],
        "macosFleet.machine.zone is `fr par`, and not the zone of the pool",
    ),
    (&[r#"macosFleet.adoptPoolPrefix="""#], "macosFleet.adoptPoolPrefix is ``, and not small letters"),
    (&["macosFleet.adoptPoolPrefix=null"], "macosFleet.adoptPoolPrefix is ``, and not small letters"),
    (
        &[r#"macosFleet.orphanReclaim.interval="often""#],
        "macosFleet.orphanReclaim.interval is `often`, and not a duration",
    ),
    (&[r#"provider.tart.archivePath="/opt/tart.tar.gz""#], "'/provider/tart/version'"),
    (
        &[r#"provider.allowVMDestinations=["10.0.0.1"]"#],
        "is `10.0.0.1`, and not PROTOCOL NETWORK [PORTS], such as",
    ),
    (
        &[r#"provider.tailscale.tags=["mac"]"#],
        "provider.tailscale.tags is `mac`, and not a tag of the tailnet",
    ),
    (&[r#"provider.tailscale.path="/opt/tailscale""#], "needs daemonPath and authKeySecretName"),
    (&[r#"provider.tailscale.daemonPath="/opt/tailscaled""#], "needs path beside it"),
    (
        &[r#"fullnameOverride="a-name-that-has-thirty-five-letters""#],
        "and not empty, or at most 34 small letters",
    ),
    (
        &[r#"macosFleet.name="a-fleet-whose-name-has-one-letter-more-than-51-letters""#],
        "and not empty, or at most 51 small letters",
    ),
    (&["capi.enabled=false", "macosFleet.enabled=true"], "macosFleet.enabled needs capi.enabled"),
    (&["capi.enabled=false", r#"runnersFleet={"enabled":true}"#], "runnersFleet.enabled needs capi.enabled"),
    (&["buildersFleet.enabled=true"], "buildersFleet.ghRunnerVersion is needed"),
    (
        &["metrics.podMonitor.enabled=true", "metrics.serviceMonitor.enabled=true"],
        "with both everything is counted twice",
    ),
    (
        &[
            "macosFleet.enabled=true",
            r#"macosFleet.name="office""#,
            "macosFleet.orphanReclaim.activeReclaim=true",
        ],
        "it has to begin with macs-tart-provider-",
    ),
    (&["macosFleet.enabled=true", r#"macosFleet.name="tuist-pool-a""#], "would look like free hosts"),
];
