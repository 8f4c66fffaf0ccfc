# `make release` fills in version and checksum.
class TartKubelet < Formula
  desc "Kubernetes node agent that runs each Pod as a Tart VM"
  homepage "https://github.com/tuist/tart-kubelet"
  url "https://github.com/tuist/tart-kubelet/releases/download/v@VERSION@/tart-kubelet-@VERSION@-darwin-arm64.tar.gz"
  version "@VERSION@"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on arch: :arm64
  depends_on macos: :ventura

  def install
    bin.install "tart-kubelet"
    pkgshare.install "dhcp-lease-time.sh"
    man1.install Dir["man/*.1"]
    generate_completions_from_executable(bin/"tart-kubelet", "completions", shells: [:bash, :zsh, :fish])
  end

  # An agent of the user who is logged in at the screen: macOS starts VMs for no other.
  service do
    run [opt_bin/"tart-kubelet", "--kubeconfig", etc/"tart-kubelet/kubeconfig",
         "--bootstrap-kubeconfig", etc/"tart-kubelet/bootstrap-kubeconfig", "--state-dir", var/"lib/tart-kubelet"]
    keep_alive true
    process_type :interactive
    environment_variables PATH: std_service_path_env
    log_path var/"log/tart-kubelet.log"
    error_log_path var/"log/tart-kubelet.log"
  end

  def caveats
    <<~EOS
      tart is needed, too:
        brew install cirruslabs/cli/tart

      To make this Mac a Node, which also survives a restart without brew services:
        sudo tart-kubelet join API_SERVER:6443 --token … --discovery-token-ca-cert-hash sha256:…

      `brew services start tart-kubelet` runs it as a LaunchAgent instead. Since macOS 15 such an agent may
      be kept from the network of the VMs; allow it in System Settings, Privacy & Security, Local Network.
    EOS
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/tart-kubelet --version")
    assert_match "complete -F", shell_output("#{bin}/tart-kubelet completions bash")
  end
end
