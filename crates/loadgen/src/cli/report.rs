//! `report`: renders a result that was saved as JSON.

use super::flags::outputs::ReportFlags;
use super::outputs::{check, write};
use super::terminal::{print, write_file};
use bench_report::compose;
use bench_report::model::{FORMAT, Report};
use bench_report::render::markdown;
use std::io::Read;
use std::path::Path;

/// Limit of a result file, which normally has some megabytes. A crafted file can use sixteen times its size
/// in memory.
const REPORT_BYTES_MAX: u64 = 64 << 20;

/// Runs `loadgen report`; prints Markdown if no file is named.
pub fn report(flags: &ReportFlags) -> Result<(), String> {
    check(&flags.outputs)?;
    let value = json(&flags.result)?;
    let mut report = read(&flags.result, whole(value))?;
    keep_rows(&mut report, &flags.rows)?;
    if let Some(path) = &flags.extract {
        report = report.extract();
        write_file(path, &(serde_json::to_string(&report).map_err(|error| error.to_string())? + "\n"))?;
    }
    let page = compose::page(&report);
    if flags.outputs.is_empty() && flags.extract.is_none() {
        return print(&markdown(&page));
    }
    write(&flags.outputs, &report, &page)
}

/// Retains the rows with these names; all if `names` is empty.
fn keep_rows(report: &mut Report, names: &[String]) -> Result<(), String> {
    let has = |name: &&String| report.suites.iter().flat_map(|suite| &suite.rows).any(|row| row.id == **name);
    if let Some(unknown) = names.iter().find(|name| !has(name)) {
        return Err(format!("--rows: the result has no row {unknown}"));
    }
    if !names.is_empty() {
        report.suites.iter_mut().for_each(|suite| suite.rows.retain(|row| names.contains(&row.id)));
        report.suites.retain(|suite| !suite.rows.is_empty());
    }
    Ok(())
}

/// Extracts the report of a single run.
fn whole(mut value: serde_json::Value) -> serde_json::Value {
    match value.get_mut("report") {
        Some(report) => report.take(),
        None => value,
    }
}

fn json(path: &Path) -> Result<serde_json::Value, String> {
    let fail = |error: &dyn std::fmt::Display| format!("read {}: {error}", path.display());
    let mut text = String::new();
    // A pipe or a device does not report its length.
    let read = std::fs::File::open(path).and_then(|file| {
        file.take(REPORT_BYTES_MAX + 1).read_to_string(&mut text).map(|length| length as u64)
    });
    if read.map_err(|error| fail(&error))? > REPORT_BYTES_MAX {
        return Err(fail(&format_args!("it has more than the {REPORT_BYTES_MAX} bytes of any report")));
    }
    serde_json::from_str(&text).map_err(|error| fail(&error))
}

fn read(path: &Path, value: serde_json::Value) -> Result<Report, String> {
    let fail = |error: &dyn std::fmt::Display| format!("read {}: {error}", path.display());
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {}
        Some(format) => {
            return Err(fail(&format_args!("it has format {format}, this program reads {FORMAT}")));
        }
        None => return Err(fail(&"it is no result of loadgen")),
    }
    serde_json::from_value(value).map_err(|error| fail(&error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::flags::outputs::Outputs;

    const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../bench-report/tests/data/report.json");

    #[test]
    fn a_result_becomes_three_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| Some(dir.path().join(name));
        let outputs = Outputs { html: file("r.html"), csv: file("r.csv"), markdown: file("r.md") };
        report(&ReportFlags { result: SAMPLE.into(), rows: Vec::new(), extract: None, outputs }).unwrap();
        for (name, begin) in
            [("r.html", "<!doctype html>"), ("r.csv", "suite,row,side,"), ("r.md", "# kv-server and")]
        {
            let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
            assert!(text.starts_with(begin), "{name}: {}", &text[..40]);
        }
    }

    #[test]
    fn every_committed_report_is_rendered_from_its_committed_data() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reports");
        let mut count = 0;
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "json") {
                let result = json(&path).and_then(|value| read(&path, value)).unwrap();
                let page = markdown(&compose::page(&result));
                let kept = std::fs::read_to_string(path.with_extension("md")).unwrap();
                let name = path.display();
                assert!(page == kept, "{name} renders to another page: loadgen report {name} --markdown …");
                assert!(
                    result.extract() == result,
                    "{name} is not an extract: loadgen report --extract writes it"
                );
                count += 1;
            }
        }
        assert!(count > 0);
    }

    #[test]
    fn an_extract_has_the_tables_of_its_result() {
        let whole = json(Path::new(SAMPLE)).and_then(|value| read(Path::new(SAMPLE), value)).unwrap();
        let small = whole.extract();
        let tables = |report: &Report| {
            markdown(&compose::page(report)).lines().filter(|line| line.starts_with("| ")).count()
        };
        assert!(tables(&whole) > 5 && tables(&small) == tables(&whole));
        let bytes = |report: &Report| serde_json::to_string(report).unwrap().len();
        assert!(bytes(&small) * 3 < bytes(&whole) * 2, "{} {}", bytes(&small), bytes(&whole));
    }

    #[test]
    fn a_page_may_have_some_of_the_rows() {
        let mut report = json(Path::new(SAMPLE)).and_then(|value| read(Path::new(SAMPLE), value)).unwrap();
        let name = report.suites[0].rows[1].id.clone();
        let unknown = keep_rows(&mut report, &["put-0".into()]).unwrap_err();
        assert_eq!(unknown, "--rows: the result has no row put-0");
        keep_rows(&mut report, std::slice::from_ref(&name)).unwrap();
        let left: Vec<_> = report.suites.iter().flat_map(|suite| &suite.rows).map(|row| &row.id).collect();
        assert_eq!(left, [&name]);
    }

    #[test]
    fn files_that_are_no_result_are_refused_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        for (text, reason) in [
            ("{}", "it is no result of loadgen"),
            ("{\"format\":99}", "it has format 99, this program reads 2"),
            ("{\"format\":2}", "missing field `title`"),
            ("[", "EOF while parsing a list at line 1 column 1"),
        ] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(
                json(&path).and_then(|value| read(&path, value)),
                Err(format!("read {}: {reason}", path.display()))
            );
        }
        let endless = json(Path::new("/dev/zero")).unwrap_err();
        assert_eq!(endless, "read /dev/zero: it has more than the 67108864 bytes of any report");
        std::fs::write(&path, "[".repeat(1 << 20)).unwrap();
        let deep = json(&path).unwrap_err();
        assert!(deep.contains("recursion limit exceeded"), "{deep}");
        let missing = json(Path::new("/nonexistent.json")).unwrap_err();
        assert!(missing.starts_with("read /nonexistent.json: No such file"), "{missing}");
    }
}
