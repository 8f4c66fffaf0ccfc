//! Removes a sandbox and its processes when the process that started it ends.

fn main() -> anyhow::Result<()> {
    tart_kubelet_tests::sandbox::keeper::run()
}
