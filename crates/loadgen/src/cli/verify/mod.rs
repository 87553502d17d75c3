//! `verify`: flags to settings, and the result as text, JSON and exit status.

mod text; // the result for a terminal

use super::flags::Global;
use super::flags::verify::VerifyFlags;
use super::outputs::{check_json, write_json};
use super::progress;
use super::refusal::{Refusal, of_flags};
use super::terminal::{note, print};
use crate::client::admin;
use crate::client::endpoint::Endpoint;
use crate::verify::checker::Checked;
use crate::verify::{self, Settings};
use std::process::ExitCode;
use std::time::Duration;

/// Without --request-timeout. A call that takes longer has an unknown outcome.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Clients of each member, at least: one alone would never compete with another one.
const CLIENTS_PER_MEMBER: usize = 2;
/// A read of all keys is one answer, far below any limit.
const KEYS_MAX: u32 = 10_000;
/// A year.
const MINUTES_MAX: f64 = 525_600.0;

/// Uses and checks the cluster of the endpoints, also through members that they do not name.
pub async fn verify(global: &Global, flags: &VerifyFlags) -> Result<ExitCode, Refusal> {
    let settings = of_flags(settings(global, flags, Vec::new()))?;
    check_json(global.json.as_deref())?;
    let cluster = admin::cluster(&global.endpoints).await.map_err(|error| error.to_string())?;
    let endpoints = cluster.endpoints();
    let clients = settings.clients.max(CLIENTS_PER_MEMBER * endpoints.len());
    let settings = Settings { endpoints, clients, ..settings };
    let remark = &mut |passed: Duration, checked: &Checked| {
        note(&format!("{:.0} s: {}", passed.as_secs_f64(), text::brief(checked)));
    };
    let report = verify::run(&settings, progress::interrupted(), remark).await?;
    if let Some(path) = &global.json {
        write_json(path, &(serde_json::to_string(&report).map_err(|error| error.to_string())? + "\n"))?;
    }
    if !global.is_json_on_stdout() {
        print(&text::text(&report, &settings.endpoints))?;
    }
    Ok(match (report.is_clean(), report.interrupted) {
        (false, _) => ExitCode::FAILURE,
        (true, true) => ExitCode::from(progress::INTERRUPTED_STATUS),
        (true, false) => ExitCode::SUCCESS,
    })
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
