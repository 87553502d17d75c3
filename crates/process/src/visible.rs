//! Escapes untrusted text for terminals.
//!
//! A character that moves the cursor, changes colors, reverses text direction or has no width is shown as its
//! number, so that a text can neither control the terminal nor imitate another text.

fn is_plain(character: char) -> bool {
    let is_format = matches!(
        character,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}'
    );
    !character.is_control() && !is_format
}

/// Returns the text on a single line, with all invisible characters escaped.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_plain(character) {
            shown.push(character);
        } else {
            shown.extend(character.escape_unicode());
        }
    }
    shown
}

/// Escapes invisible characters within the strings of a JSON text. Its values do not change.
pub fn visible_json(json: &str) -> String {
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        // Between values, JSON contains only line breaks and spaces.
        if is_plain(character) || character == '\n' {
            shown.push(character);
        } else {
            for unit in character.encode_utf16(&mut [0; 2]) {
                shown.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_on_a_terminal_are_shown_as_numbers() {
        for (text, wanted) in [
            ("app/web/", "app/web/"),
            ("ключ/鍵/é", "ключ/鍵/é"),
            ("\u{1b}[2J\u{1b}]0;title\u{7}", "\\u{1b}[2J\\u{1b}]0;title\\u{7}"),
            ("a\r\nb\tc", "a\\u{d}\\u{a}b\\u{9}c"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("user\u{202e}txt", "user\\u{202e}txt"),
            ("zero\u{200b}width\u{feff}", "zero\\u{200b}width\\u{feff}"),
            ("\u{7f}", "\\u{7f}"),
            ("", ""),
        ] {
            assert_eq!(visible(text), wanted, "{text:?}");
        }
    }

    #[test]
    fn json_with_visible_characters_has_the_same_values() {
        let value = serde_json::json!({ "a\u{9b}\n": ["\u{1b}[2J", "é\u{202e}\u{e0041}\u{7f}", 1] });
        let shown = visible_json(&format!("{value:#}\n"));
        assert!(shown.chars().all(|character| is_plain(character) || character == '\n'), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
