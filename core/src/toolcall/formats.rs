//! The ways in which families of models write calls: one table, from which calls are read and enforced. A model's own
//! follows from its chat template and its vocabulary.

use std::collections::BTreeMap;

use super::code::Code;
use super::json::Json;
use super::named::{NAMED, Named, Place};
use super::tags::Tags;
use crate::engine::vocab::Vocab;

/// A family's way.
#[derive(Debug, PartialEq)]
pub struct Format {
    pub name: &'static str,
    /// The shapes that it reads; the first is how the family writes.
    pub shapes: &'static [Shape],
    /// Marks that may follow a call and mean nothing more.
    pub closers: &'static [&'static str],
    /// How an answer begins that the prompt began: read as if it were the model's.
    pub begun: &'static str,
    /// What an answer begins with that is no part of it, where its reply comes in messages.
    pub answer: &'static str,
    /// Marks that mean nothing, wherever they stand.
    pub noise: &'static [&'static str],
    pub ids: Ids,
}

/// What the ids of calls look like, where a template is strict about those it is given back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ids {
    Usual,
    /// Nine letters and digits.
    Nine,
    /// `functions.NAME:NUMBER`.
    Numbered,
}

#[derive(Debug, PartialEq)]
pub enum Shape {
    Tags(Tags),
    Json(Json),
    Named(Named),
    Code(Code),
}

const JSON: Json = Json { open: "", close: "", pad: "", list: false, name: "name", arguments: "arguments" };

const QWEN: Tags = Tags {
    open: "<tool_call>",
    close: "</tool_call>",
    function: "<function=",
    function_head_end: ">",
    function_end: "</function>",
    parameter: "<parameter=",
    parameter_head_end: ">",
    value: "",
    parameter_end: "</parameter>",
    lines: true,
};

const HERMES: Json = Json { open: "<tool_call>", close: "</tool_call>", pad: "\n", ..JSON };

const PLAIN: Format =
    Format { name: "", shapes: &[], closers: &[], begun: "", answer: "", noise: &[], ids: Ids::Usual };

const QWEN_CLOSERS: &[&str] = &["</tool_call>", "</function>", "</parameter>"];

const INVOKE: Tags = Tags {
    open: "<minimax:tool_call>",
    close: "</minimax:tool_call>",
    function: "<invoke name=",
    function_head_end: ">",
    function_end: "</invoke>",
    parameter: "<parameter name=",
    parameter_head_end: ">",
    value: "",
    parameter_end: "</parameter>",
    lines: false,
};

const DSML: Tags = Tags {
    open: "<｜DSML｜function_calls>",
    close: "</｜DSML｜function_calls>",
    function: "<｜DSML｜invoke name=",
    function_head_end: ">",
    function_end: "</｜DSML｜invoke>",
    parameter: "<｜DSML｜parameter name=",
    parameter_head_end: ">",
    value: "",
    parameter_end: "</｜DSML｜parameter>",
    lines: false,
};

/// Qwen's and its like: tags, JSON where a model was trained on it.
pub static QWEN_TAGS: Format =
    Format { name: "qwen-tags", shapes: &[Shape::Tags(QWEN), Shape::Json(HERMES)], closers: QWEN_CLOSERS, ..PLAIN };

/// JSON between the same marks, as Hermes introduced it.
pub static HERMES_JSON: Format =
    Format { name: "hermes", shapes: &[Shape::Json(HERMES), Shape::Tags(QWEN)], closers: QWEN_CLOSERS, ..PLAIN };

const DEEPSEEK: Named = Named {
    open: "<｜tool▁calls▁begin｜>",
    close: "<｜tool▁calls▁end｜>",
    begin: "<｜tool▁call▁begin｜>",
    after: "<｜tool▁sep｜>",
    end: "<｜tool▁call▁end｜>",
    // The type of the call may stand before it.
    place: Place::Last,
    parts: &["<｜tool▁sep｜>", "```json", "```", "\n"],
    ..NAMED
};

const DEEPSEEK_CLOSERS: &[&str] = &["```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"];

/// All families but the first two.
static OTHERS: &[Format] = &[
    Format {
        name: "deepseek-dsml",
        shapes: &[
            Shape::Tags(DSML),
            Shape::Tags(Tags { open: "<｜DSML｜tool_calls>", close: "</｜DSML｜tool_calls>", ..DSML }),
            Shape::Json(Json { open: "<｜DSML｜function_calls>", close: "</｜DSML｜function_calls>", ..JSON }),
        ],
        closers: &["</｜DSML｜invoke>", "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
        ..PLAIN
    },
    Format {
        name: "deepseek-dsml-4",
        shapes: &[
            Shape::Tags(Tags { open: "<｜DSML｜tool_calls>", close: "</｜DSML｜tool_calls>", ..DSML }),
            Shape::Tags(DSML),
            Shape::Json(Json { open: "<｜DSML｜tool_calls>", close: "</｜DSML｜tool_calls>", ..JSON }),
        ],
        closers: &["</｜DSML｜invoke>", "</｜DSML｜function_calls>", "</｜DSML｜tool_calls>"],
        ..PLAIN
    },
    Format {
        name: "deepseek-r1",
        shapes: &[Shape::Named(Named {
            before: "function<｜tool▁sep｜>",
            after: "\n```json\n",
            end: "\n```<｜tool▁call▁end｜>",
            ..DEEPSEEK
        })],
        closers: DEEPSEEK_CLOSERS,
        ..PLAIN
    },
    Format { name: "deepseek", shapes: &[Shape::Named(DEEPSEEK)], closers: DEEPSEEK_CLOSERS, ..PLAIN },
    Format {
        name: "kimi",
        shapes: &[Shape::Named(Named {
            open: "<|tool_calls_section_begin|>",
            close: "<|tool_calls_section_end|>",
            begin: "<|tool_call_begin|>",
            before: "functions.",
            after: ":0<|tool_call_argument_begin|>",
            end: "<|tool_call_end|>",
            parts: &["<|tool_call_argument_begin|>"],
            ..NAMED
        })],
        closers: &["<|tool_call_end|>", "<|tool_calls_section_end|>"],
        ids: Ids::Numbered,
        ..PLAIN
    },
    Format {
        name: "minimax",
        shapes: &[
            Shape::Tags(INVOKE),
            Shape::Json(Json { open: "<minimax:tool_call>", close: "</minimax:tool_call>", ..JSON }),
        ],
        closers: &["</invoke>", "</minimax:tool_call>"],
        ..PLAIN
    },
    Format {
        name: "seed",
        shapes: &[
            Shape::Tags(Tags { open: "<seed:tool_call>", close: "</seed:tool_call>", lines: false, ..QWEN }),
            Shape::Json(Json { open: "<seed:tool_call>", close: "</seed:tool_call>", ..JSON }),
        ],
        closers: &["</seed:tool_call>", "</function>"],
        ..PLAIN
    },
    Format {
        name: "glm",
        shapes: &[
            Shape::Tags(Tags {
                open: "",
                close: "",
                function: "<tool_call>",
                function_head_end: "",
                function_end: "</tool_call>",
                parameter: "<arg_key>",
                parameter_head_end: "</arg_key>",
                value: "<arg_value>",
                parameter_end: "</arg_value>",
                lines: false,
            }),
            Shape::Json(HERMES),
        ],
        closers: &["</tool_call>"],
        ..PLAIN
    },
    Format {
        name: "command",
        shapes: &[Shape::Json(Json {
            open: "<|START_ACTION|>",
            close: "<|END_ACTION|>",
            list: true,
            name: "tool_name",
            arguments: "parameters",
            ..JSON
        })],
        closers: &["<|END_ACTION|>"],
        noise: &["<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"],
        ..PLAIN
    },
    Format {
        name: "command-plus",
        shapes: &[Shape::Json(Json {
            open: "Action:",
            pad: "\n",
            list: true,
            name: "tool_name",
            arguments: "parameters",
            ..JSON
        })],
        closers: &["```"],
        ..PLAIN
    },
    Format {
        name: "harmony",
        shapes: &[
            Shape::Named(Named { begin: "<|channel|>commentary", ..HARMONY }),
            Shape::Named(Named { begin: "<|start|>assistant", ..HARMONY }),
            // Behind what the prompt began.
            Shape::Named(Named { begin: "to=functions.", place: Place::First, ..HARMONY }),
        ],
        closers: &["<|call|>", "<|end|>", "<|return|>"],
        answer: "<|channel|>final<|message|>",
        ..PLAIN
    },
    Format {
        name: "mistral",
        shapes: &[
            Shape::Named(Named { begin: "[TOOL_CALLS]", after: "[ARGS]", parts: &["[ARGS]", "[CALL_ID]"], ..NAMED }),
            Shape::Json(Json { open: "[TOOL_CALLS]", list: true, ..JSON }),
        ],
        ids: Ids::Nine,
        ..PLAIN
    },
    Format {
        name: "mistral-list",
        shapes: &[
            Shape::Json(Json { open: "[TOOL_CALLS]", list: true, ..JSON }),
            Shape::Named(Named { begin: "[TOOL_CALLS]", after: "[ARGS]", parts: &["[ARGS]", "[CALL_ID]"], ..NAMED }),
        ],
        ids: Ids::Nine,
        ..PLAIN
    },
    Format {
        name: "apertus",
        shapes: &[Shape::Json(Json {
            open: "<|tools_prefix|>",
            close: "<|tools_suffix|>",
            list: true,
            name: "",
            arguments: "",
            ..JSON
        })],
        closers: &["<|tools_suffix|>"],
        ..PLAIN
    },
    Format {
        name: "gemma",
        shapes: &[
            Shape::Json(Json { open: "<|tool_call>", close: "<tool_call|>", ..JSON }),
            Shape::Code(Code { open: "<|tool_call>", close: "<tool_call|>", call: "call:" }),
        ],
        closers: &["<tool_call|>"],
        ..PLAIN
    },
    Format {
        name: "nemotron",
        shapes: &[Shape::Json(Json { open: "<TOOLCALL>", close: "</TOOLCALL>", list: true, ..JSON })],
        closers: &["</TOOLCALL>"],
        ..PLAIN
    },
    Format {
        name: "apriel",
        shapes: &[Shape::Json(Json { open: "<tool_calls>", close: "</tool_calls>", list: true, ..JSON })],
        closers: &["</tool_calls>"],
        noise: &["[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"],
        ..PLAIN
    },
    Format {
        name: "gigachat",
        shapes: &[
            Shape::Json(Json { open: "<|function_call|>", ..JSON }),
            Shape::Json(Json { open: "function call<|role_sep|>", pad: "\n", ..JSON }),
        ],
        noise: &["<|message_sep|>\n\n"],
        ..PLAIN
    },
    Format { name: "functools", shapes: &[Shape::Json(Json { open: "functools", list: true, ..JSON })], ..PLAIN },
    Format {
        name: "functionary",
        shapes: &[Shape::Named(Named { begin: ">>>", after: "\n", parts: &["\n"], ..NAMED })],
        begun: ">>>",
        noise: &[">>>all\n"],
        ..PLAIN
    },
    Format {
        name: "functionary-tags",
        shapes: &[Shape::Named(Named { begin: "<function=", after: ">", end: "</function>", parts: &[">"], ..NAMED })],
        closers: &["</function>"],
        ..PLAIN
    },
    Format {
        name: "mcp",
        shapes: &[
            Shape::Named(Named {
                begin: "<use_mcp_tool>",
                before: "\n<server_name>tools</server_name>\n<tool_name>",
                after: "</tool_name>\n<arguments>\n",
                end: "\n</arguments>\n</use_mcp_tool>",
                place: Place::Behind("<tool_name>"),
                parts: &["<tool_name>", "</tool_name>", "<arguments>", "<server_name>", "</server_name>"],
                ..NAMED
            }),
            Shape::Json(HERMES),
        ],
        closers: &["</arguments>", "</use_mcp_tool>", "</tool_call>"],
        ..PLAIN
    },
    Format {
        name: "granite",
        shapes: &[Shape::Json(Json { open: "<|tool_call|>", list: true, ..JSON })],
        closers: &["<|/tool_call|>"],
        ..PLAIN
    },
    Format {
        name: "smollm",
        shapes: &[
            Shape::Json(HERMES),
            // In Python, where the request gave its tools in that way.
            Shape::Code(Code { open: "<code>", close: "</code>", call: "" }),
        ],
        closers: &["</tool_call>", "</code>"],
        ..PLAIN
    },
    Format {
        name: "lfm",
        shapes: &[
            Shape::Json(Json { open: "<|tool_call_start|>", close: "<|tool_call_end|>", list: true, ..JSON }),
            Shape::Code(Code { open: "<|tool_call_start|>", close: "<|tool_call_end|>", call: "" }),
        ],
        closers: &["<|tool_call_end|>"],
        ..PLAIN
    },
    Format {
        name: "llama",
        shapes: &[
            Shape::Json(Json { arguments: "parameters", ..JSON }),
            Shape::Json(Json { open: "<|python_tag|>", arguments: "parameters", ..JSON }),
            Shape::Named(Named { begin: "<function=", after: ">", end: "</function>", parts: &[">"], ..NAMED }),
            Shape::Code(Code { open: "", close: "", call: "" }),
        ],
        closers: &["</function>", ";", "<|eom_id|>"],
        ..PLAIN
    },
];

const HARMONY: Named = Named {
    before: " to=functions.",
    after: " <|constrain|>json<|message|>",
    // Whom a message is for. What follows may say how its text is written.
    place: Place::Behind("to="),
    last: "<|message|>",
    parts: &[" ", "<|channel|>", "<|constrain|>", "<|message|>"],
    ..NAMED
};

/// What tells a family by its template, the surest signs first.
static SIGNS: &[(&str, &str)] = &[
    ("<|tool_call_argument_begin|>", "kimi"),
    ("<minimax:tool_call>", "minimax"),
    ("<seed:tool_call>", "seed"),
    ("<arg_key>", "glm"),
    ("<|START_ACTION|>", "command"),
    ("Write \\'Action:\\' followed by a json", "command-plus"),
    ("<|start|>assistant", "harmony"),
    ("[ARGS]", "mistral"),
    ("[TOOL_CALLS]", "mistral-list"),
    ("<|tools_prefix|>", "apertus"),
    ("<|tool_call>call:", "gemma"),
    ("<TOOLCALL>", "nemotron"),
    ("<tool_calls>", "apriel"),
    ("<|function_call|>", "gigachat"),
    ("function call<|role_sep|>", "gigachat"),
    ("'role': 'function call'", "gigachat"),
    ("functools[", "functools"),
    ("<use_mcp_tool>", "mcp"),
    ("<|tool_list_start|>", "lfm"),
    ("<|tool_call_start|>", "lfm"),
    (">>>all", "functionary"),
    ("python_tools", "smollm"),
    ("<|tool_call|>", "granite"),
    ("<parameter=", "qwen-tags"),
    ("<tool_call>", "hermes"),
    ("<function=", "functionary-tags"),
    ("\"parameters\": ", "llama"),
    ("<|python_tag|>", "llama"),
];

impl Format {
    /// The family that a template's source shows; `has` says whether the vocabulary has such a special token. `None`:
    /// no sign of any.
    pub fn of(template: &str, has: &dyn Fn(&str) -> bool) -> Option<&'static Format> {
        // These templates put their marks together from parts.
        if template.contains("｜DSML｜") {
            let third = template.contains("function_calls>");
            return Format::named(if third { "deepseek-dsml" } else { "deepseek-dsml-4" });
        }
        if template.contains("<｜tool▁calls▁begin｜>") {
            return Format::named(if template.contains("```json") { "deepseek-r1" } else { "deepseek" });
        }
        let sign = SIGNS.iter().find(|(sign, _)| template.contains(sign)).map(|(_, name)| *name);
        sign.or_else(|| has("<|tool_call_start|>").then_some("lfm")).and_then(Format::named)
    }

    /// The way that a generic tool prompt asks for.
    pub fn generic() -> &'static Format {
        &HERMES_JSON
    }

    /// What the source of a family's template holds.
    #[cfg(test)]
    pub(crate) fn sign_of(name: &str) -> &'static str {
        match name {
            "deepseek-r1" => "<｜tool▁calls▁begin｜>```json",
            "deepseek" => "<｜tool▁calls▁begin｜>",
            "deepseek-dsml" => "｜DSML｜ function_calls>",
            "deepseek-dsml-4" => "｜DSML｜",
            _ => SIGNS.iter().find(|(_, own)| *own == name).map_or("", |(sign, _)| sign),
        }
    }

    pub fn named(name: &str) -> Option<&'static Format> {
        Format::all().find(|format| format.name == name)
    }

    pub fn all() -> impl Iterator<Item = &'static Format> {
        [&QWEN_TAGS, &HERMES_JSON].into_iter().chain(OTHERS)
    }
}

impl Format {
    /// How the family itself writes.
    pub fn first(&self) -> &'static Shape {
        self.shapes.first().unwrap_or(&BETWEEN_TAGS)
    }

    /// Every mark of it.
    pub fn literals(&self) -> impl Iterator<Item = &'static str> {
        let of_shapes = self.shapes.iter().flat_map(Shape::literals);
        of_shapes.chain(self.closers.iter().copied()).chain(self.noise.iter().copied()).filter(|mark| !mark.is_empty())
    }

    /// Special tokens of a vocabulary that open a call by themselves, and begin nothing else that the family writes.
    pub fn openers(&self, vocab: &dyn Vocab) -> Vec<(u32, &'static str)> {
        let other = |mark: &str| {
            [self.begun, self.answer].iter().chain(self.noise).any(|text| !text.is_empty() && text.starts_with(mark))
        };
        let marks = self.shapes.iter().map(Shape::mark).filter(|mark| !mark.is_empty() && !other(mark));
        let found: BTreeMap<u32, &'static str> = marks.filter_map(|mark| Some((vocab.special(mark)?, mark))).collect();
        found.into_iter().collect()
    }

    /// The way of a hosted model: its family's, or the one that a generic tool prompt asks for.
    pub fn of_model(vocab: &dyn Vocab) -> &'static Format {
        Format::of_vocab(vocab).unwrap_or(Format::generic())
    }

    /// That of its family, where it has one.
    pub fn of_vocab(vocab: &dyn Vocab) -> Option<&'static Format> {
        let of = |source: Option<String>| Format::of(&source?, &|mark| vocab.special(mark).is_some());
        of(vocab.tool_template()).or_else(|| of(Some(vocab.template().unwrap_or_default())))
    }
}

static BETWEEN_TAGS: Shape = Shape::Json(HERMES);
