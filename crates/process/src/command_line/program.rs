//! A program as its user sees it.

use clap::Command;

/// A program of this project.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: &'static str,
    pub version: &'static str,
    /// Definition of its flags and commands.
    pub tree: Command,
}

/// Returns the output of `--version`. `build` is the target, commit and date from the build script in
/// `deploy/version`; `etcd` is the version of etcd whose API is spoken.
pub fn version_text(name: &str, version: &str, etcd: &str, build: [&str; 3]) -> String {
    let [target, commit, date] = build;
    let own = format!(
        "{name} Version: {version}
etcd Version: {etcd}
"
    );
    format!(
        "{own}Git SHA: {commit}
Build Date: {date}
Target: {target}
"
    )
}

/// Quotes a word for a shell, if it needs quotes.
pub fn quoted(word: &str) -> String {
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.,:/=]@%+".contains(character);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Arg;

    use super::super::{completion_command, man_command};
    use super::*;

    /// A program with nested commands, whose name has a hyphen.
    pub fn program() -> Program {
        let flag = |name: &'static str| Arg::new(name).long(name);
        let view = flag("view").value_parser(["long", "short"]);
        let replace = Command::new("replace").arg(flag("grace-period")).arg(view);
        let member = Command::new("member").subcommand(replace).subcommand(Command::new("reseed"));
        let name = "a-program";
        let tree = Command::new(name)
            .disable_help_subcommand(true)
            .arg(flag("data-dir"))
            .subcommand(member.disable_help_subcommand(true))
            .subcommand(completion_command(name))
            .subcommand(man_command(name));
        Program { name, version: "1.2.3", tree }
    }

    #[test]
    fn words_with_special_characters_are_quoted() {
        for (word, wanted) in [
            ("--name=a", "--name=a"),
            ("http://10.0.0.1:2380,x", "http://10.0.0.1:2380,x"),
            ("", "''"),
            ("a b", "'a b'"),
            ("http://[::1]:1", "'http://[::1]:1'"),
            ("it's", "'it'\\''s'"),
            ("$HOME", "'$HOME'"),
        ] {
            assert_eq!(quoted(word), wanted, "{word}");
        }
    }
}
