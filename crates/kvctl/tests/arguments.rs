//! Command lines, help and the environment of etcdctl.

use std::process::{Command, Output};

use crate::KVCTL;
use crate::common::Cluster;

fn kvctl(line: &str) -> Output {
    Command::new(KVCTL).args(line.split_whitespace()).env_clear().output().unwrap()
}

fn said(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

#[test]
fn help_lists_the_commands_and_each_form_has_its_own() {
    let own = said(kvctl("--help").stdout);
    assert_eq!(own, include_str!("../src/command_line/help.txt"));
    for (line, wanted) in [
        ("help", &["Usage: kvctl COMMAND"][..]),
        ("help archive", &["--segment-every"]),
        ("help member replace", &["--grace"]),
        ("help restore", &["kvctl restore --from FILE"]),
        ("archive --help", &["--segment-every", "kvctl archive verify --from", "ETCDCTL_ENDPOINTS"]),
        ("archive list --help", &["--from"]),
        ("archive verify -h", &["--from"]),
        ("import --help", &["kvctl import --live [ENDPOINTS]", "--other-data-dir", "--bump-revision"]),
        // The same whether the source is there or not.
        ("import --live --help", &["kvctl import --from FILE", "--until-caught-up"]),
        ("restore --help", &["kvctl restore --from FILE", "--from DIRECTORY|s3://BUCKET/PREFIX", "--time"]),
        ("restore --from / -h", &["kvctl restore --from FILE", "--revision"]),
        ("member replace --help", &["--grace", "ETCDCTL_ENDPOINTS", "ETCDCTL_PASSWORD"]),
        ("top --help", &["--metrics-endpoints", "ETCDCTL_CACERT"]),
        ("inspect --help", &["--records"]),
        ("completion --help", &["source <(kvctl completion bash)"]),
        ("man --help", &["kvctl man --output"]),
        ("man member replace", &["kvctl\\-member\\-replace"]),
        ("completion bash", &["--metrics-endpoints", "--until-caught-up"]),
    ] {
        let output = kvctl(line);
        let text = said(output.stdout);
        assert!(output.status.success(), "{line}: {text}");
        wanted.iter().for_each(|part| assert!(text.contains(part), "{line}: {part}: {text}"));
    }
    assert!(said(kvctl("--version").stdout).starts_with("kvctl Version: "));
}

#[test]
fn invalid_lines_end_with_2_and_what_to_run_instead() {
    for (line, wanted) in [
        ("", "Usage: kvctl COMMAND"),
        ("snapshot save f", "etcdctl snapshot save FILE"),
        ("check-config", "run `kv-server check-config`"),
        ("help no-such", "no command \"no-such\""),
        ("no-such", "kvctl --help lists the commands"),
        // clap suggests --bump-revision for it, which changes what the members serve.
        ("restore --from snap.db --revision 5 --data-dir d", "--revision goes with an archive"),
        ("import --from / --data-dir d", "is for `kvctl restore`"),
        ("top --endpoints a:1", "--metrics-endpoints"),
        ("archive", "--to <DIR|s3://…>"),
        ("archive list", "--from <DIR|s3://…>"),
    ] {
        let output = kvctl(line);
        let text = said(output.stderr);
        assert!(output.status.code() == Some(2) && text.contains(wanted), "{line}: {text}");
        assert!(!text.contains("bump"), "{line}: {text}");
    }
}

/// Endpoints, user and password come from the variables of etcdctl.
#[tokio::test(flavor = "multi_thread")]
async fn the_environment_of_etcdctl_is_read() {
    let cluster = Cluster::started(1);
    let member = &cluster.members[0];
    let revision = member.put("a", "1").await;
    let directory = tempfile::tempdir().unwrap();
    let endpoint = format!("127.0.0.1:{}", member.client_port);
    let run = |line: &str| {
        let mut command = Command::new(KVCTL);
        let line = line.replace("DIR", directory.path().to_str().unwrap());
        command.args(line.split(' ')).env_clear().env("ETCDCTL_ENDPOINTS", &endpoint);
        let output = command.output().unwrap();
        (output.status.code(), said([output.stdout, output.stderr].concat()))
    };
    let (code, text) = run("import --live --until-caught-up --data-dir DIR/d");
    assert!(code == Some(0) && text.contains(&format!("revision {revision}")), "{text}");
    // The flag wins.
    let (code, text) = run("import --live 127.0.0.1:1 --timeout 0 --data-dir DIR/e");
    assert!(code == Some(1) && text.contains("127.0.0.1:1: "), "{text}");
    let (code, text) = run("member replace m0 m1=http://127.0.0.1:1 --dry-run");
    assert!(code == Some(0) && text.contains("m1"), "{text}");
    for (variable, value) in [
        ("ETCDCTL_CACERT", ""),
        ("ETCDCTL_CERT", ""),
        ("ETCDCTL_USER", ""),
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", ""),
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "0"),
        ("ETCDCTL_INSECURE_SKIP_TLS_VERIFY", "F"),
        ("ETCDCTL_PASSWORD", "of no user"),
    ] {
        let mut command = Command::new(KVCTL);
        command.args(["member", "reseed", "m0"]).env_clear().env("ETCDCTL_ENDPOINTS", &endpoint);
        let output = command.env(variable, value).output().unwrap();
        let text = said([output.stdout, output.stderr].concat());
        let is_done = output.status.success() && text.contains(": nothing to do");
        assert!(is_done, "{variable}={value}: {text}");
    }
}
