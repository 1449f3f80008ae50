//! Parses paths of members such as `buf_pool_ptr[*].stat.n_pages_read`.

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// `.name`
    Field(String),
    /// `[3]`
    Index(u64),
    /// `[*]`
    All,
}

/// A root and the steps from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The original text, for messages.
    pub text: String,
    /// The name of a global variable or a type.
    pub root: String,
    /// The steps from the root.
    pub steps: Vec<Step>,
}

impl Path {
    /// Parse a path, or return an error message.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("not a path of members: {text:?}");
        let end = text.find(['.', '[']).unwrap_or(text.len());
        let (root, mut rest) = text.split_at(end);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            let step;
            if let Some(field) = rest.strip_prefix('.') {
                let end = field.find(['.', '[']).unwrap_or(field.len());
                step = Step::Field(is_name(&field[..end]).ok_or_else(wrong)?.to_owned());
                rest = &field[end..];
            } else {
                let (index, after) =
                    rest.strip_prefix('[').and_then(|inner| inner.split_once(']')).ok_or_else(wrong)?;
                step = match index {
                    "*" => Step::All,
                    number => Step::Index(number.parse().map_err(|_| wrong())?),
                };
                rest = after;
            }
            steps.push(step);
        }
        let root = is_name(root).ok_or_else(wrong)?.to_owned();
        Ok(Self { text: text.to_owned(), root, steps })
    }
}

fn is_name(text: &str) -> Option<&str> {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (!text.is_empty() && text.chars().all(fits)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_a_path() {
        let path = Path::parse("pool[*].init_flush[1].n").unwrap();
        assert_eq!(path.root, "pool");
        let field = |name: &str| Step::Field(name.to_owned());
        assert_eq!(path.steps, [Step::All, field("init_flush"), Step::Index(1), field("n")]);
        assert_eq!(Path::parse("max_connections").unwrap().steps, []);
    }

    #[test]
    fn refuses_malformed_paths() {
        for bad in ["", ".a", "a.", "a[", "a[x]", "a]b", "a b", "a..b"] {
            assert!(Path::parse(bad).is_err(), "{bad}");
        }
    }
}
