//! Downgrade: the checks and the bookkeeping of etcd.
//!
//! An enabled downgrade is recorded and shown by Status. It has no other effect: there is no older store
//! format, and no older version of a member that could join.

use crate::member::Member;
use ::auth::Requester;
use api::Error;
use api::command::SetDowngrade;
use api::etcdserverpb::downgrade_request::DowngradeAction;
use api::etcdserverpb::{DowngradeInfo, DowngradeRequest, DowngradeResponse};
use api::version;
use state_machine::{ApplyError, downgrade_target};
use tonic::Status;

/// A version without its patch level, which is irrelevant here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    major: i64,
    minor: i64,
}

/// The only valid target: one minor version below the cluster's.
const TARGET: Version = Version { major: version::CLUSTER_MAJOR, minor: version::CLUSTER_MINOR - 1 };

pub(super) async fn execute(
    member: &Member,
    requester: &Requester,
    request: &DowngradeRequest,
) -> Result<DowngradeResponse, Status> {
    match DowngradeAction::try_from(request.action) {
        Ok(DowngradeAction::Validate) => validate(member, &request.version).await.map(drop)?,
        Ok(DowngradeAction::Enable) => {
            let Version { major, minor } = validate(member, &request.version).await?;
            record(member, requester, format!("{major}.{minor}.0")).await?;
        }
        Ok(DowngradeAction::Cancel) => {
            member.read_point().await.map_err(grpc_errors::read_point)?;
            // etcd reports success if there is no downgrade to cancel, and logs a warning.
            match current(member)? {
                Some(_) => record(member, requester, String::new()).await?,
                None => tracing::warn!(error = %Error::NoInflightDowngrade, "failed to cancel downgrade"),
            }
        }
        Err(_) => return Err(grpc_errors::unknown_downgrade_action()),
    }
    Ok(DowngradeResponse { header: member.header(), version: version::CLUSTER_SHORT.to_owned() })
}

/// Returns the state of the downgrade for Status.
pub(super) fn shown(member: &Member) -> Result<DowngradeInfo, Status> {
    Ok(match current(member)? {
        Some(target_version) => DowngradeInfo { enabled: true, target_version },
        None => DowngradeInfo::default(),
    })
}

/// Parses and checks the target version of a downgrade.
async fn validate(member: &Member, version: &str) -> Result<Version, Status> {
    let target = parse(version).ok_or_else(|| grpc_errors::refused(Error::WrongDowngradeVersionFormat))?;
    member.read_point().await.map_err(grpc_errors::read_point)?;
    if target != TARGET {
        return Err(grpc_errors::refused(Error::InvalidDowngradeTargetVersion));
    }
    match current(member)? {
        Some(_) => Err(grpc_errors::refused(Error::DowngradeInProcess)),
        None => Ok(target),
    }
}

fn current(member: &Member) -> Result<Option<String>, Status> {
    downgrade_target(&member.store).map_err(|fatal: ApplyError| grpc_errors::record(fatal))
}

async fn record(member: &Member, requester: &Requester, target_version: String) -> Result<(), Status> {
    let caller = member.caller(requester).await?;
    Ok(member.propose(&caller, SetDowngrade { target_version }).await?)
}

/// Parses a semantic version, with or without its patch level, like etcd's library.
fn parse(text: &str) -> Option<Version> {
    semantic(text).or_else(|| semantic(&format!("{text}.0")))
}

fn semantic(text: &str) -> Option<Version> {
    let (text, metadata) = text.split_once('+').unwrap_or((text, ""));
    let (text, pre_release) = text.split_once('-').unwrap_or((text, ""));
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'-';
    if !pre_release.bytes().chain(metadata.bytes()).all(is_valid) {
        return None;
    }
    let mut numbers = text.splitn(3, '.').map(|number| number.parse::<i64>().ok());
    let version = Version { major: numbers.next()??, minor: numbers.next()?? };
    numbers.next()?.map(|_patch| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_by_etcd() {
        let is = |major, minor| Some(Version { major, minor });
        for (text, expected) in [
            ("3.6", is(3, 6)),
            ("3.6.9", is(3, 6)),
            ("03.06", is(3, 6)),
            ("3.6.0-rc.1+a-b", is(3, 6)),
            ("3.6.0-+", is(3, 6)),
            ("3.9223372036854775807", is(3, i64::MAX)),
            ("3.9223372036854775808", None),
            ("3.6-rc.1", None),
            ("3.6.0-!", None),
            ("3.6.0.1", None),
            ("3.6.", None),
            ("+3.6", None),
            ("3", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        assert_eq!(format!("{}.{}", TARGET.major, TARGET.minor + 1), version::CLUSTER_SHORT);
    }
}
