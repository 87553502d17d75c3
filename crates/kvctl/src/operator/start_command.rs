//! The command that starts a new member, to be pasted into a shell.

use api::etcdserverpb::Member;

use super::plan::Replacement;
use process::command_line::quoted;

/// Returns how the member with this id is started. It serves clients as the old member did, at the host of
/// its own peer URL.
pub fn of(wanted: &Replacement, members: &[Member], id: u64, old: Option<&Member>) -> String {
    let Replacement { new_name, new_urls, .. } = wanted;
    // The new member finds its peers by their URLs: any distinct name will do.
    let name = |member: &Member| match member.name == *new_name || member.name.is_empty() {
        true => format!("{:x}", member.id),
        false => member.name.clone(),
    };
    let entry = |member: &Member| {
        let urls = member.peer_ur_ls.iter().map(|url| format!("{}={url}", name(member)));
        urls.collect::<Vec<_>>()
    };
    let others = members.iter().filter(|member| member.id != id);
    let mut cluster: Vec<String> = others.clone().flat_map(entry).collect();
    cluster.extend(new_urls.iter().map(|url| format!("{new_name}={url}")));
    let peers = new_urls.join(",");
    let known = old.into_iter().chain(others).find_map(|member| member.client_ur_ls.first());
    let clients = client_url(&new_urls[0], known.map_or("http://localhost:2379", String::as_str));
    let listen = |urls: &[String]| urls.iter().map(|url| listen_url(url)).collect::<Vec<_>>().join(",");
    let flags = [
        format!("--name {}", quoted(new_name)),
        format!("--data-dir {}", quoted(&format!("{new_name}.kv-server"))),
        format!("--listen-peer-urls {}", quoted(&listen(new_urls))),
        format!("--initial-advertise-peer-urls {}", quoted(&peers)),
        format!("--listen-client-urls {}", quoted(&listen_url(&clients))),
        format!("--advertise-client-urls {}", quoted(&clients)),
        format!("--initial-cluster {}", quoted(&cluster.join(","))),
        "--initial-cluster-state existing".to_owned(),
    ];
    let is_secure = peers.contains("https://") || clients.contains("https://");
    let tls = if is_secure { ", and the flags of TLS of the other members" } else { "" };
    let flags = flags.join(" \\\n    ");
    format!(
        "start it now, on its host, with an empty data directory{tls}; its id is {id:x}:\n  kv-server {flags}"
    )
}

/// Scheme, host with its brackets, and what follows the host.
fn parts(url: &str) -> Option<(&str, &str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let end = rest.rfind(':').filter(|at| !rest[*at..].contains(']')).unwrap_or(rest.len());
    Some((scheme, &rest[..end], &rest[end..]))
}

/// Scheme and port of a known client URL, at the host of the new member.
fn client_url(peer: &str, known: &str) -> String {
    match (parts(peer), parts(known)) {
        (Some((_, host, _)), Some((scheme, _, port))) => format!("{scheme}://{host}{port}"),
        _ => known.to_owned(),
    }
}

/// A listener is bound to an address, or to all of them where a URL has a name.
fn listen_url(url: &str) -> String {
    match parts(url) {
        Some((scheme, host, port)) if !is_address(host) => format!("{scheme}://0.0.0.0{port}"),
        _ => url.to_owned(),
    }
}

fn is_address(host: &str) -> bool {
    host == "localhost" || host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn member(id: u64, name: &str, client_url: &str) -> Member {
        Member {
            id,
            name: name.to_owned(),
            peer_ur_ls: vec![format!("http://{name}.example:2380")],
            client_ur_ls: vec![client_url.to_owned()],
            ..Member::default()
        }
    }

    /// The words that a shell makes of the command.
    fn words(command: &str) -> Vec<String> {
        let script = format!("kv-server() {{ printf '%s\\n' \"$@\"; }}\n{command}");
        let output = Command::new("bash").args(["-euc", &script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_command_is_one_that_a_shell_and_a_member_accept() {
        let others = [member(1, "a", "http://10.0.0.1:2379"), member(2, "b c", "https://10.0.0.2:2379")];
        for (name, url, old, wanted) in [
            ("n", "http://10.0.0.9:2380", 0, ["http://10.0.0.9:2380", "http://10.0.0.9:2379"]),
            ("it's", "http://n.example:12380", 0, ["http://0.0.0.0:12380", "http://0.0.0.0:2379"]),
            ("n", "https://[::1]:1", 1, ["https://[::1]:1", "https://[::1]:2379"]),
        ] {
            let wanted_member = Replacement {
                old: "a".to_owned(),
                new_name: name.to_owned(),
                new_urls: vec![url.to_owned()],
                is_old_removed: false,
                is_new_promoted: false,
            };
            let text = of(&wanted_member, &others, 9, Some(&others[old]));
            let words = words(text.split_once('\n').unwrap().1);
            let value = |flag: &str| words[words.iter().position(|word| word == flag).unwrap() + 1].clone();
            assert_eq!([value("--listen-peer-urls"), value("--listen-client-urls")], wanted, "{text}");
            assert_eq!(
                (value("--name"), value("--data-dir")),
                (name.to_owned(), format!("{name}.kv-server"))
            );
            let cluster = format!("a=http://a.example:2380,b c=http://b c.example:2380,{name}={url}");
            assert_eq!((value("--initial-cluster"), words.len()), (cluster, 16), "{text}");
            assert_eq!(text.contains("flags of TLS"), url.starts_with("https"), "{text}");
        }
    }
}
