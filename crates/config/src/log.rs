//! Log settings: level, format, outputs and rotation. Errors carry etcd's texts.

use std::io::IsTerminal;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::flags::Flags;
use process::log::{LogFormat, LogOutput, LogSettings, Rotation};

const DAY: Duration = Duration::from_secs(86_400);
const MEGABYTE: u64 = 1 << 20;
/// Default size limit of a log file.
const MEGABYTES: u64 = 100;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogSettingsError {
    #[error("unrecognized level: \"{0}\"; use debug, info, warn, error, panic or fatal")]
    Level(String),
    #[error("unknown log format: {0}, supported values json, console")]
    Format(String),
    #[error("unknown logger option {0:?}; use zap, or omit --logger")]
    Logger(String),
    #[error("multi logoutput for \"default\" is not supported yet")]
    Default,
    #[error("open sink \"\": open : no such file or directory")]
    Empty,
    #[error("open sink {0:?}: file URLs must leave host empty or use localhost, and have an absolute path")]
    FileUrl(String),
    #[error("--log-outputs requires a single file path when --log-rotate-config-json is defined")]
    Rotation,
    #[error("improperly formatted log rotation config: {0}")]
    RotationSyntax(String),
    #[error("invalid log rotation config: {0}")]
    RotationValue(String),
}

/// Value of `--log-rotation-config-json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RotationConfig {
    /// Size in megabytes at which a file is rotated.
    maxsize: u64,
    /// Days for which a backup is retained; zero means forever.
    maxage: u32,
    maxbackups: u32,
    localtime: bool,
    compress: bool,
}

/// Builds the log settings from flags.
pub fn log_settings(flags: &Flags) -> Result<LogSettings, LogSettingsError> {
    let given = &flags.log_level;
    let level = match given.to_ascii_lowercase().as_str() {
        "debug" => tracing::Level::DEBUG,
        "" | "info" => tracing::Level::INFO,
        "warn" | "warning" => tracing::Level::WARN,
        // There is no level above error: panics and fatal errors are logged as errors.
        "error" | "dpanic" | "panic" | "fatal" => tracing::Level::ERROR,
        _ => return Err(LogSettingsError::Level(given.to_owned())),
    };
    let outputs = outputs(&flags.log.log_outputs)?;
    let format = match flags.log_format.as_deref() {
        None if outputs == [LogOutput::Stderr] && std::io::stderr().is_terminal() => LogFormat::Console,
        None | Some("json") => LogFormat::Json,
        Some("console") => LogFormat::Console,
        Some(other) => return Err(LogSettingsError::Format(other.to_owned())),
    };
    if flags.log.logger != "zap" {
        return Err(LogSettingsError::Logger(flags.log.logger.clone()));
    }
    let rotation = if flags.log.enable_log_rotation { Some(rotation(flags, &outputs)?) } else { None };
    Ok(LogSettings { level, format, outputs, rotation })
}

fn outputs(text: &str) -> Result<Vec<LogOutput>, LogSettingsError> {
    let mut outputs = Vec::new();
    for name in text.split(',') {
        let output = match name {
            "" => return Err(LogSettingsError::Empty),
            "default" if text != "default" => return Err(LogSettingsError::Default),
            "default" | "stderr" => LogOutput::Stderr,
            "stdout" => LogOutput::Stdout,
            "systemd/journal" => LogOutput::Journal,
            url if url.starts_with("file:") => LogOutput::File(path_of(url)?.into()),
            path => LogOutput::File(path.into()),
        };
        if !outputs.contains(&output) {
            outputs.push(output);
        }
    }
    Ok(outputs)
}

/// Returns the path of a local `file:` URL.
fn path_of(url: &str) -> Result<&str, LogSettingsError> {
    let rest = url.strip_prefix("file:").unwrap_or(url);
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.strip_prefix("localhost").unwrap_or(rest),
        None => rest,
    };
    if path.starts_with('/') { Ok(path) } else { Err(LogSettingsError::FileUrl(url.to_owned())) }
}

fn rotation(flags: &Flags, outputs: &[LogOutput]) -> Result<Rotation, LogSettingsError> {
    let files = outputs.iter().filter(|output| matches!(output, LogOutput::File(_))).count();
    if files > 1 || (files == 0 && outputs.len() == 1) {
        return Err(LogSettingsError::Rotation);
    }
    let config: RotationConfig = match flags.log.log_rotation_config_json.as_deref() {
        None => RotationConfig::default(),
        // Like Go's decoder: names are case-insensitive, and the last duplicate takes effect.
        Some(text) => serde_json::from_str::<serde_json::Map<String, Value>>(text)
            .map(|fields| fields.into_iter().map(|(name, value)| (name.to_ascii_lowercase(), value)))
            .and_then(|fields| serde_json::from_value(fields.collect()))
            .map_err(|error| {
                let reason = error.to_string();
                if error.is_data() {
                    LogSettingsError::RotationValue(reason)
                } else {
                    LogSettingsError::RotationSyntax(reason)
                }
            })?,
    };
    let megabytes = if config.maxsize == 0 { MEGABYTES } else { config.maxsize };
    Ok(Rotation {
        bytes_max: megabytes.saturating_mul(MEGABYTE),
        age_max: (config.maxage > 0).then(|| DAY * config.maxage),
        backups_max: config.maxbackups as usize,
        compresses: config.compress,
        wants_local_times: config.localtime,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::{ParsedFlags, parse};

    fn settings(words: &[&str]) -> Result<LogSettings, LogSettingsError> {
        match parse(words.iter().map(Into::into), []) {
            Ok(ParsedFlags::Flags(flags, _)) => log_settings(&flags),
            other => panic!("{words:?}: {other:?}"),
        }
    }

    #[test]
    fn a_level_is_a_word_in_any_case() {
        use tracing::Level;
        for (word, level) in [
            ("", Level::INFO),
            ("Info", Level::INFO),
            ("DEBUG", Level::DEBUG),
            ("warning", Level::WARN),
            ("WARN", Level::WARN),
            ("DPanic", Level::ERROR),
        ] {
            assert_eq!(settings(&[&format!("--log-level={word}")]).unwrap().level, level, "{word}");
        }
    }

    #[test]
    fn outputs_and_rotation_are_those_of_the_flags() {
        let defaults = settings(&[]).unwrap();
        assert_eq!((defaults.outputs, defaults.rotation), (vec![LogOutput::Stderr], None));
        let all = settings(&[
            "--logger=zap",
            "--log-outputs=stderr,stdout,/x/a.log,systemd/journal,file:/x/a.log,file://localhost/x/a.log",
        ]);
        let file = LogOutput::File("/x/a.log".into());
        let wanted = [LogOutput::Stderr, LogOutput::Stdout, file, LogOutput::Journal];
        assert_eq!(all.unwrap().outputs, wanted);
        let rotating = |json| settings(&["--log-outputs=a", "--enable-log-rotation", json]).unwrap().rotation;
        let whole = Rotation { bytes_max: 100 << 20, ..Rotation::default() };
        assert_eq!(rotating("--enable-log-rotation=true"), Some(whole));
        let json = r#"{"MaxSize":7,"maxsize":1,"maxage":2,"maxbackups":3,"compress":true}"#;
        let json = &format!("--log-rotation-config-json={json}");
        let wanted = Rotation {
            bytes_max: 1 << 20,
            age_max: Some(DAY * 2),
            backups_max: 3,
            compresses: true,
            wants_local_times: false,
        };
        assert_eq!(rotating(json), Some(wanted));
        // Parsed only if rotation is enabled, as in etcd.
        assert_eq!(settings(&["--log-rotation-config-json={"]).unwrap().rotation, None);
    }

    #[test]
    fn a_log_that_cannot_be_written_is_refused_in_etcds_words() {
        const SINGLE: &str =
            "--log-outputs requires a single file path when --log-rotate-config-json is defined";
        let rotate = "--enable-log-rotation";
        let json = "--log-rotation-config-json";
        let cases: [(&[&str], &str); 11] = [
            (&["--log-level=loud"], "unrecognized level: \"loud\""),
            (&["--log-format=xml"], "unknown log format: xml, supported values json, console"),
            (&["--logger=foo"], "unknown logger option \"foo\""),
            (&["--log-outputs=default,stderr"], "multi logoutput for \"default\" is not supported yet"),
            (&["--log-outputs="], "open sink \"\": open : no such file or directory"),
            (
                &["--log-outputs=file://x/a.log"],
                "open sink \"file://x/a.log\": file URLs must leave host empty or use localhost, and have an \
                 absolute path",
            ),
            (&[rotate], SINGLE),
            (&[rotate, "--log-outputs=a,b"], SINGLE),
            (
                &[rotate, "--log-outputs=a", json, "{\"maxsize\""],
                "improperly formatted log rotation config: EOF while parsing an object at line 1 column 10",
            ),
            (
                &[rotate, "--log-outputs=a", json, "{\"maxsize\":\"x\"}"],
                "invalid log rotation config: invalid type: string \"x\", expected u64",
            ),
            (
                &[rotate, "--log-outputs=a", json, "[]"],
                "invalid log rotation config: invalid type: sequence, expected a map",
            ),
        ];
        for (words, wanted) in cases {
            let error = settings(words).expect_err(wanted).to_string();
            assert!(error.starts_with(wanted), "{error}");
        }
    }
}
