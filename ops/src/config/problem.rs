//! What is wrong with a configuration file: where, why and what to write instead, for people and for programs.

use std::{fmt, ops::Range};

use annotate_snippets::{AnnotationKind, Element, Level, Renderer, Snippet};
use serde::Serialize;

/// Whether a file with this problem can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// It cannot.
    Error,
    /// It can, but something in it may not be what was meant.
    Warning,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file.
    pub file: String,
    /// Whether the file can be run.
    pub severity: Severity,
    /// The line, counted from 1.
    pub line: usize,
    /// The column, counted from 1 in characters.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: String,
    /// The bytes of the file that it is about.
    #[serde(skip)]
    pub span: Range<usize>,
}

/// Everything that is wrong with one file, in the order of the file.
#[derive(Clone, Debug)]
pub struct Problems {
    file: String,
    /// The file's text, with anything that may be a secret blotted out.
    source: String,
    list: Vec<Problem>,
}

impl Problems {
    pub(super) fn new(file: &str, source: &str) -> Self {
        Self { file: file.to_owned(), source: source.to_owned(), list: Vec::new() }
    }

    /// The problems.
    #[must_use]
    pub fn list(&self) -> &[Problem] {
        &self.list
    }

    /// Whether the file cannot be run.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.list.iter().any(|problem| problem.severity == Severity::Error)
    }

    /// The problems as a JSON array of objects with `file`, `severity`, `line`, `column`, `message` and `help`.
    ///
    /// # Panics
    /// Never: strings and numbers always serialise.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(&self.list).expect("strings and numbers always serialise")
    }

    /// The problems as a compiler prints them, each with its line of the file; with colours where `colour`.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        for problem in &self.list {
            text.push_str(&renderer.render(&[self.group(problem)]));
            text.push_str("\n\n");
        }
        text
    }

    pub(super) fn push(&mut self, severity: Severity, span: &Range<usize>, message: String, help: String) {
        let span = self.clamp(span);
        let (line, column) = place(&self.source, span.start);
        let known = |problem: &Problem| problem.span == span && problem.message == message;
        if self.list.len() < PROBLEMS_MAX && !self.list.iter().any(known) {
            self.list.push(Problem { file: self.file.clone(), severity, line, column, message, help, span });
        }
    }

    pub(super) fn error(&mut self, span: &Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.push(Severity::Error, span, message.into(), help.into());
    }

    pub(super) fn warning(
        &mut self,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Severity::Warning, span, message.into(), help.into());
    }

    /// Keeps what may be a secret out of every rendering.
    pub(super) fn blot_out(&mut self, span: &Range<usize>) {
        let span = self.clamp(span);
        let blot: String =
            self.source[span.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { '*' }).collect();
        self.source.replace_range(span, &blot);
    }

    pub(super) fn sort(&mut self) {
        self.list.sort_by_key(|problem| (problem.span.start, problem.severity));
    }

    fn group<'a>(&'a self, problem: &'a Problem) -> annotate_snippets::Group<'a> {
        let level = match problem.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let snippet = Snippet::source(self.source.as_str())
            .path(self.file.as_str())
            .annotation(AnnotationKind::Primary.span(problem.span.clone()));
        let help: Element<'_> = Level::HELP.message(problem.help.as_str()).into();
        level.primary_title(problem.message.as_str()).element(snippet).element(help)
    }

    /// The part of a span that is in the text, on one line, on whole characters.
    fn clamp(&self, span: &Range<usize>) -> Range<usize> {
        let start = floor(&self.source, span.start);
        let line_end = self.source[start..].find('\n').map_or(self.source.len(), |len| start + len);
        let end = floor(&self.source, span.end).clamp(start, line_end.max(start));
        start..end
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

impl std::error::Error for Problems {}

/// A garbled file has no end of problems; nobody reads more than these.
const PROBLEMS_MAX: usize = 100;

fn floor(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

fn place(text: &str, at: usize) -> (usize, usize) {
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}
