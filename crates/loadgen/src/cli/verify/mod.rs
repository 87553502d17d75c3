//! `verify`: turns flags into settings, and the result into text, JSON and an exit status.

mod text; // the result for a terminal

pub mod document; // the result as JSON
pub mod page; // the result for a browser

pub mod proxy; // a faulty member

use super::flags::Global;
use super::flags::verify::VerifyFlags;
use super::measure::command_line;
use super::outputs::check_writable;
use super::progress;
use super::refusal::{ExitReason, of_flags};
use super::terminal::{first_error, note, print, write_file};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::proxy::{LieCounts, Proxy};
use crate::verify::{self, Settings, VerifyReport};
use bench_report::render::html as html_of;
use checker::CheckCounts;
use document::VerifyDocument;
use std::process::ExitCode;
use std::time::Duration;

/// Default of --request-timeout. A call that takes longer has an unknown outcome.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum clients per member: a single one would not compete.
const CLIENTS_PER_MEMBER: usize = 2;
/// A read of all keys is a single response, far below any limit.
const KEYS_MAX: u32 = 10_000;
/// A year.
const MINUTES_MAX: f64 = 525_600.0;

/// Uses and checks the cluster of the endpoints, including members without a named endpoint.
pub async fn verify(global: &Global, flags: &VerifyFlags) -> Result<ExitCode, ExitReason> {
    let settings = of_flags(settings(global, flags, Vec::new()))?;
    global.json.as_deref().map_or(Ok(()), check_writable)?;
    flags.html.as_deref().map_or(Ok(()), check_writable)?;
    let cluster = admin::cluster(&global.endpoints).await.map_err(|error| error.to_string())?;
    let endpoints = cluster.endpoints();
    let clients = settings.clients.max(CLIENTS_PER_MEMBER * endpoints.len());
    let mut document = VerifyDocument::begin(
        &Settings { endpoints: endpoints.clone(), clients, ..settings.clone() },
        command_line(),
    );
    document.unreached = cluster.members_len.unwrap_or(0).saturating_sub(endpoints.len());
    let (endpoints, proxy) = lying(flags, endpoints).await?;
    let settings = Settings { endpoints, clients, ..settings };
    let remark = &mut |passed: Duration, checked: &CheckCounts| {
        note(&format!("{:.0} s: {}", passed.as_secs_f64(), text::brief(checked)));
    };
    let running = verify::run(&settings, progress::interrupted(), remark);
    let (report, counts) = match proxy {
        None => (running.await?, None),
        Some((proxy, counts)) => tokio::select! {
            report = running => (report?, Some(counts)),
            () = proxy.serve() => unreachable!("a proxy serves until it is dropped"),
        },
    };
    document.lies = counts.map_or(Vec::new(), |counts| {
        counts.get().into_iter().map(|(lie, times)| (lie.to_string(), times)).collect()
    });
    document.report = report;
    write(global, flags, &document)?;
    Ok(match &document.report {
        VerifyReport { violation: Some(_), .. } | VerifyReport { failed: Some(_), .. } => ExitCode::FAILURE,
        VerifyReport { interrupted: true, .. } => ExitCode::from(progress::INTERRUPTED_STATUS),
        _ if document.is_clean() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// Returns the endpoints; the first one leads through a proxy if lies are requested.
async fn lying(
    flags: &VerifyFlags,
    mut endpoints: Vec<Endpoint>,
) -> Result<(Vec<Endpoint>, Option<(Proxy, LieCounts)>), String> {
    let Some(first) = endpoints.first_mut().filter(|_| !flags.lies.is_empty()) else {
        return Ok((endpoints, None));
    };
    let fail = |error: std::io::Error| format!("listen for the proxy: {error}");
    let proxy =
        Proxy::bind("127.0.0.1:0", first.clone(), &flags.lies, flags.lie_every).await.map_err(fail)?;
    let address = proxy.address().map_err(fail)?;
    *first = first.sibling(&format!("http://{address}")).map_err(|error| error.to_string())?;
    let counts = proxy.counts();
    Ok((endpoints, Some((proxy, counts))))
}

fn write(global: &Global, flags: &VerifyFlags, document: &VerifyDocument) -> Result<(), String> {
    let json = global.json.as_ref().map_or(Ok(()), |path| {
        let text = serde_json::to_string(document).map_err(|error| error.to_string())? + "\n";
        write_file(path, &text)
    });
    let html = flags.html.as_deref();
    let html = html.map_or(Ok(()), |path| write_file(path, &html_of(&page::page(document))));
    let printed = if global.is_json_on_stdout() { Ok(()) } else { print(&text::text(document)) };
    first_error([printed, json, html])
}

fn settings(global: &Global, flags: &VerifyFlags, endpoints: Vec<Endpoint>) -> Result<Settings, String> {
    let &VerifyFlags { minutes, rate, keys, .. } = flags;
    if !(minutes > 0.0 && minutes <= MINUTES_MAX) {
        return Err(format!("--minutes={minutes}: expected more than 0 and at most {MINUTES_MAX}"));
    }
    if rate == 0 {
        return Err("--rate=0 would send nothing".into());
    }
    if keys == 0 || keys > KEYS_MAX {
        return Err(format!("--keys={keys}: expected 1 to {KEYS_MAX}"));
    }
    let is_given = !global.request_timeout.is_zero();
    Ok(Settings {
        endpoints,
        prefix: flags.prefix.clone(),
        duration: Duration::from_secs_f64(minutes * 60.0),
        rate: rate as f64,
        clients: global.clients,
        keys,
        leases: flags.leases,
        hash_interval: (!flags.hash_interval.is_zero()).then_some(flags.hash_interval),
        compact_interval: (!flags.compact_interval.is_zero()).then_some(flags.compact_interval),
        request_timeout: if is_given { global.request_timeout } else { REQUEST_TIMEOUT },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::{Cli, Command};
    use clap::Parser;

    #[test]
    fn flags_become_settings_or_are_refused_with_the_reason() {
        let read = |line: &str| {
            let cli = Cli::try_parse_from(["loadgen", "verify"].into_iter().chain(line.split_whitespace()))
                .unwrap();
            let Command::Verify(flags) = &cli.command else { panic!("{line}") };
            let settings = settings(&cli.global, flags, Vec::new())?;
            let Settings { duration, rate, clients, keys, request_timeout, prefix, .. } = settings;
            Ok::<_, String>(format!("{duration:?} {rate}/s {clients} {keys} {request_timeout:?} {prefix}"))
        };
        for (line, expected) in [
            ("", Ok("60s 500/s 1 20 5s verify/")),
            (
                "--minutes=0.5 --rate=9 --clients=4 --keys=3 --request-timeout=1s --prefix=p",
                Ok("30s 9/s 4 3 1s p"),
            ),
            ("--minutes=0", Err("--minutes=0: expected more than 0 and at most 525600")),
            ("--minutes=NaN", Err("--minutes=NaN: expected more than 0 and at most 525600")),
            ("--rate=0", Err("--rate=0 would send nothing")),
            ("--keys=0", Err("--keys=0: expected 1 to 10000")),
            ("--keys=10001", Err("--keys=10001: expected 1 to 10000")),
        ] {
            assert_eq!(read(line), expected.map(str::to_owned).map_err(str::to_owned), "{line}");
        }
    }
}
