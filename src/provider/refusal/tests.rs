//! Published refusals of hosts, and their classification.

use std::time::UNIX_EPOCH;

use serde_json::json;

use super::*;

/// Classifies a refusal of a request with these fields, all parts, and three tools.
fn refused(status: u16, body: &str) -> (ProviderError, Option<Change>) {
    let fields = [
        "model",
        "messages",
        "max_tokens",
        "temperature",
        "stream",
        "stream_options",
        "tools",
        "prompt_cache_key",
        "reasoning_effort",
        "max_completion_tokens",
    ];
    let sent = Sent {
        fields: fields.map(str::to_owned).to_vec(),
        parts: vec![
            "images",
            "files",
            "audio",
            "reasoning",
            "system_role",
            "null",
        ],
        tools: ["exec", "read_file", "s__a"].map(str::to_owned).to_vec(),
        max_tokens: 8192,
        messages: 2,
        has_key: true,
        is_private: false,
    };
    classify(&HostRefusal::read(status, None, body, UNIX_EPOCH), &sent)
}

fn error(message: &str) -> String {
    json!({"error": {"message": message}}).to_string()
}

fn kind(error: &ProviderError) -> String {
    let debug = format!("{error:?}");
    let name = debug.split([' ', '(', '{']).next();
    name.unwrap_or_default().to_owned()
}

/// Errors about length, and the limit that each states.
const TOO_LONG: [(u16, &str, Option<u64>); 47] = [
    (
        400,
        "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens. Please reduce the length of the messages.",
        Some(8192),
    ),
    (
        400,
        "This model's maximum context length is 4097 tokens, however you requested 5000 tokens (1000 in your prompt; 4000 for the completion).",
        Some(4097),
    ),
    (
        400,
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        None,
    ),
    (
        400,
        "prompt is too long: 210000 tokens > 200000 maximum",
        Some(200_000),
    ),
    (
        400,
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length or `max_tokens` and try again",
        Some(200_000),
    ),
    (
        400,
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
        Some(1_048_576),
    ),
    (
        400,
        "The input token count exceeds the maximum number of tokens allowed 1,048,576.",
        Some(1_048_576),
    ),
    (
        400,
        "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        Some(131_072),
    ),
    (400, "Prompt exceeds max length", None),
    (
        400,
        "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens (61808 in the messages, 8192 in the completion).",
        Some(65_536),
    ),
    (
        400,
        "Invalid request: Your request exceeded model token limit: 8192",
        Some(8192),
    ),
    (
        400,
        "Range of input length should be [1, 30720]",
        Some(30_720),
    ),
    (
        400,
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 98304]",
        Some(98_304),
    ),
    (
        400,
        "Please reduce the length of the messages or completion.",
        None,
    ),
    (
        413,
        "Request too large for model `llama-3.1-8b-instant` on tokens per minute (TPM): Limit 6000, Requested 9001, please reduce your message size and try again.",
        Some(6000),
    ),
    (
        400,
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        Some(32_768),
    ),
    (
        400,
        "Prompt contains 40000 tokens, too large for model with 32768 maximum context length",
        Some(32_768),
    ),
    (
        400,
        "invalid params, context window exceeds limit (2013)",
        None,
    ),
    (
        400,
        "Total tokens of image and text exceed max message tokens",
        None,
    ),
    (
        400,
        "Total tokens of image and text exceed max message tokens: 98304",
        Some(98_304),
    ),
    (
        400,
        "This endpoint's maximum context length is 163840 tokens. However, you requested about 170000 tokens (161808 of text input, 8192 in the output).",
        Some(163_840),
    ),
    (
        400,
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 8000 `inputs` tokens and 1000 `max_new_tokens`",
        Some(8193),
    ),
    (
        422,
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
        Some(4096),
    ),
    (
        400,
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        Some(4096),
    ),
    (
        500,
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        None,
    ),
    (
        400,
        "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.",
        Some(4096),
    ),
    (
        400,
        "The number of tokens to keep from the initial prompt is greater than the context length (n_keep: 5000 >= n_ctx: 4096)",
        Some(4096),
    ),
    (400, "the input length exceeds the context length", None),
    (
        400,
        "This model's maximum context length is 8192 tokens. However, your request has 9000 input tokens. Please reduce the length of the input messages.",
        Some(8192),
    ),
    (
        400,
        "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 8192 tokens and your request has 1000 input tokens (8192 > 8192 - 1000).",
        Some(8192),
    ),
    (
        400,
        "The decoder prompt (length 9001) is longer than the maximum model length of 8192. Make sure that `max_model_len` is no smaller than the number of text tokens.",
        Some(8192),
    ),
    (
        400,
        "Requested token count exceeds the model's maximum context length of 131072 tokens. You requested a total of 140000 tokens: 130000 tokens from the input messages and 10000 tokens for the completion.",
        Some(131_072),
    ),
    (
        400,
        "Prompt length (9001) exceeds maximum input length (8192). Set truncate_input_tokens.",
        Some(8192),
    ),
    (400, "Input is too long for requested model.", None),
    (
        400,
        "too many tokens: size limit exceeded by 3456 tokens. Try using shorter or fewer inputs. The limit for this model is 128000 tokens.",
        Some(128_000),
    ),
    (
        400,
        "too many tokens: size limit exceeded by 3456 tokens. Try using shorter inputs.",
        None,
    ),
    (
        413,
        "Request body too large for gpt-4o model. Max size: 8000 tokens.",
        Some(8000),
    ),
    (
        400,
        "AiError: The estimated number of input and maximum output tokens (9000) exceeded this model context window limit (8192).",
        Some(8192),
    ),
    (
        400,
        "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
        Some(8192),
    ),
    (
        400,
        "The prompt is too long: 150000, model maximum context length: 131072",
        Some(131_072),
    ),
    (
        400,
        "Input length 9001 exceeds the maximum allowed token length of 8192 tokens.",
        Some(8192),
    ),
    (422, "too many tokens", None),
    (500, "exceed max message tokens", None),
    (
        400,
        "Context length exceeded: 9000 tokens, the context window is only 8192",
        Some(8192),
    ),
    (400, "Your prompt is larger than 32768 tokens", Some(32_768)),
    (413, "request too large", None),
    (
        429,
        "Request too large for gpt-4 in organization org-x on tokens per min (TPM): Limit 10000, Requested 12000. The input or output tokens must be reduced.",
        Some(10_000),
    ),
];

#[test]
fn long_requests_are_told_from_other_refusals() {
    let mut wrong = Vec::new();
    for (status, text, limit) in TOO_LONG {
        let (got, changes) = refused(status, &error(text));
        let wanted = limit.filter(|_| status != 429).map(Change::Window);
        let is_right =
            matches!(got, ProviderError::TooLong { limit: stated, .. } if stated == limit);
        if !is_right || changes != wanted {
            wrong.push(format!("{status} {text}: {got:?} {changes:?}"));
        }
    }
    // 95 of 100 must be right.
    assert!(wrong.len() <= TOO_LONG.len() / 20, "{wrong:#?}");
    for (body, limit) in [
        (
            json!({"error": {"code": 400, "message": "the request exceeds the context", "type": "exceed_context_size_error", "n_ctx": 2048}}),
            Some(2048),
        ),
        (
            json!({"error": {"code": "context_length_exceeded", "message": "no"}}),
            None,
        ),
        (
            json!({"error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens."}),
            Some(131_072),
        ),
        (
            json!({"error": {"code": "1261", "message": "Prompt exceeds max length"}}),
            None,
        ),
        (
            json!({"error": {"metadata": {"raw": "{\"error\":{\"message\":\"maximum context length is 8192\"}}"}}}),
            Some(8192),
        ),
        (json!({"detail": "too many tokens"}), None),
    ] {
        let (got, _) = refused(400, &body.to_string());
        assert!(
            matches!(got, ProviderError::TooLong { limit: stated, .. } if stated == limit),
            "{body}: {got:?}"
        );
    }
}

/// Refusals that are not about length.
const OTHERS: [(u16, &str, &str); 36] = [
    (401, "invalid token: limit of your plan", "AuthFailed"),
    (
        400,
        "API key not valid. Please pass a valid API key.",
        "AuthFailed",
    ),
    (
        403,
        "You exceeded the token limit of this project",
        "AuthFailed",
    ),
    (403, "Enable billing for this project", "Quota"),
    (
        402,
        "Insufficient credits. This request requires more tokens than the limit",
        "Quota",
    ),
    (400, "Your credit balance is too low", "Quota"),
    (
        429,
        "You exceeded your current quota: insufficient_quota",
        "Quota",
    ),
    (
        429,
        "Rate limit reached for gpt-4 on tokens per min (TPM): Limit 10000, Used 9000, Requested 2000. Please try again in 6s.",
        "RateLimited",
    ),
    (
        429,
        "Number of request tokens has exceeded your daily rate limit",
        "RateLimited",
    ),
    (
        404,
        "The model `x` does not exist or you do not have access to its context window limit",
        "NotFound",
    ),
    (400, "unknown model test-model", "NotFound"),
    (
        400,
        "The model `gpt-4-32k` has been deprecated and is no longer available",
        "NotFound",
    ),
    (
        503,
        "The model is overloaded, too many requests",
        "Transient",
    ),
    (
        500,
        "prompt processing exceeded the timeout of 300 s",
        "Transient",
    ),
    (
        502,
        "upstream connect error or disconnect/reset before headers. reset reason: overflow",
        "Transient",
    ),
    (
        400,
        "max_tokens is too large: 8192. This model supports at most 4096 completion tokens, whereas you provided 8192.",
        "Rejected",
    ),
    (
        400,
        "`max_tokens` must be less than or equal to `4096`, the maximum value for `max_tokens` is less than the `context_window` for this model",
        "Rejected",
    ),
    (
        400,
        "max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for claude-3-haiku-20240307",
        "Rejected",
    ),
    (
        400,
        "Invalid max_tokens value, the valid range of max_tokens is [1, 4096]",
        "Rejected",
    ),
    (
        400,
        "Invalid 'tools': array too long. Expected an array with maximum length 2, but got an array with length 3 instead.",
        "Rejected",
    ),
    (
        400,
        "tools.1.custom.input_schema: JSON schema is invalid, maximum depth exceeded",
        "Rejected",
    ),
    (
        400,
        "Invalid schema for function 's__a': In context=(), object schema missing properties.",
        "Rejected",
    ),
    (
        400,
        "prompt_cache_key: String should have at most 64 characters",
        "Rejected",
    ),
    (
        400,
        "temperature: range is 0 to 1 for this model",
        "Rejected",
    ),
    (
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        "Rejected",
    ),
    (400, "This model does not support images", "Rejected"),
    (
        400,
        "messages.1.content.0.image.source.base64: image exceeds 5 MB maximum: 6291456 bytes > 5242880 bytes",
        "MessageRefused",
    ),
    (
        400,
        "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got 64.",
        "MessageRefused",
    ),
    (
        400,
        "image dimensions exceed max allowed size: 8000 pixels",
        "MessageRefused",
    ),
    (
        413,
        "<html><body>413 Request Entity Too Large</body></html>",
        "TooLong",
    ),
    (
        400,
        "Your prompt was flagged: it is not allowed here",
        "MessageRefused",
    ),
    (
        400,
        "Output blocked by content filtering policy",
        "MessageRefused",
    ),
    (422, "the reason", "MessageRefused"),
    (
        400,
        "at most 4 images may be provided in one request",
        "MessageRefused",
    ),
    (400, "<!DOCTYPE html><h1>nginx", "Rejected"),
    (502, "<html>Bad gateway", "Transient"),
];

#[test]
fn other_refusals_are_not_taken_for_length() {
    let mut wrong = Vec::new();
    for (status, text, expected) in OTHERS {
        let is_page = text.starts_with('<');
        let body = if is_page {
            text.to_owned()
        } else {
            error(text)
        };
        let (got, changes) = refused(status, &body);
        if kind(&got) != expected {
            wrong.push(format!("{status} {text}: {got:?} {changes:?}"));
        }
    }
    assert!(wrong.len() <= OTHERS.len() / 20, "{wrong:#?}");
    for (body, expected) in [
        (
            json!({"error": {"type": "overloaded_error", "message": "Overloaded"}}),
            "Transient",
        ),
        (
            json!({"error": {"type": "rate_limit_error", "message": "slow"}}),
            "RateLimited",
        ),
        (
            json!({"error": {"type": "authentication_error", "message": "invalid x-api-key"}}),
            "AuthFailed",
        ),
        (
            json!({"error": {"message": "boom", "code": 503}}),
            "Transient",
        ),
    ] {
        assert_eq!(kind(&refused(200, &body.to_string()).0), expected, "{body}");
    }
}

#[test]
fn refusal_leads_to_its_change() {
    let without = |part: &str| Change::Without(part.to_owned());
    let with = |part: &str| Change::With(part.to_owned());
    for (status, body, change) in [
        (400, error("max_tokens is too large: 8192. This model supports at most 4096 completion tokens"), Change::MaxTokens(4096)),
        (400, error("`max_tokens` must be less than or equal to `4096`, the maximum value for `max_tokens` is less than the `context_window` for this model"), Change::MaxTokens(4096)),
        (400, error("Invalid max_tokens value, the valid range of max_tokens is [1, 4096]"), Change::MaxTokens(4096)),
        (400, error("max_tokens: 8192 > 4096, which is the maximum allowed number of output tokens for claude-3-haiku-20240307"), Change::MaxTokens(4096)),
        (402, error("This request requires more credits, or fewer max_tokens. You requested up to 8192 tokens, but can only afford 2417."), Change::Credit(2417)),
        (400, error("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."), without("max_tokens")),
        (400, error("unknown field max_completion_tokens"), without("max_completion_tokens")),
        (400, error("Invalid 'tools': array too long. Expected an array with maximum length 2, but got an array with length 3 instead."), Change::MaxTools(2)),
        (400, json!({"error": {"message": "Invalid schema for function 's__a': In context=(), object schema missing properties.", "param": "tools[2].function.parameters"}}).to_string(), Change::WithoutTool("s__a".to_owned())),
        (400, error("Invalid schema for function 's__a': no properties"), Change::WithoutTool("s__a".to_owned())),
        (400, error("* GenerateContentRequest.tools[0].function_declarations[1].parameters.properties: should be non-empty"), Change::WithoutTool("read_file".to_owned())),
        (422, json!({"detail": [{"loc": ["body", "tools", 0, "function"], "msg": "bad"}]}).to_string(), Change::WithoutTool("exec".to_owned())),
        (400, error("Function tools with reasoning_effort are not supported for this model: set reasoning_effort to 'none'."), Change::Set("reasoning_effort".to_owned(), "none".into())),
        (422, json!({"detail": [{"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"}]}).to_string(), without("stream_options")),
        (400, error("property 'prompt_cache_key' is unsupported"), without("prompt_cache_key")),
        (400, error("invalid temperature: only 1 is allowed for this model"), without("temperature")),
        (400, error("`temperature` is deprecated for this model."), without("temperature")),
        (400, json!({"error": {"message": "Your organization must be verified.", "param": "stream"}}).to_string(), without("stream")),
        (400, error("qwen3-8b is not a multimodal model"), without("images")),
        (404, error("No endpoints found that support image input"), without("images")),
        (404, error("No endpoints found that support tool use"), without("tools")),
        (400, error("registry.ollama.ai/library/gemma2:2b does not support tools"), without("tools")),
        (400, error("System role not supported"), without("system_role")),
        (400, error("'messages.2' : property 'reasoning_details' is unsupported"), without("reasoning")),
        (400, error("The reasoning_content in the thinking mode must be passed back to the API."), with("reasoning")),
        (400, error("Function call is missing a thought_signature"), with("signatures")),
        (400, error("\"thinking.type.enabled\" is not supported for this model. Use \"thinking.type.adaptive\""), with("adaptive")),
        (400, error("messages.1.content.0: Invalid `signature` in `thinking` block"), without(STALE_REASONING)),
        (400, error("content cannot be null"), without("null")),
        (500, error("tools param requires --jinja flag"), without("tools")),
        (501, error("this server does not support tools"), without("tools")),
        (400, error("Invalid content type: file is not supported"), without("files")),
        (400, error("messages[1].content must be a string"), without("files")),
        (422, error("type must be one of ['text', 'image_url']"), without("files")),
        (400, error("Unknown content part type `document`"), without("files")),
    ] {
        let (error, got) = refused(status, &body);
        assert_eq!(got, Some(change), "{body}: {error:?}");
    }
    for text in [
        "unknown model m",
        "the stream_options of life",
        "messages: not allowed",
        "x",
        "Invalid image_url: the image could not be decoded",
        "image format image/heic is not supported",
    ] {
        let (got, change) = refused(400, &error(text));
        assert_eq!(change, None, "{text}: {got:?}");
    }
}

/// Ranges of the reply's length, and what each leads to after a request for 8192 tokens.
const RANGES: [(&str, Option<u64>); 28] = [
    ("max_tokens must be between 1 and 4096", Some(4096)),
    ("max_tokens must be in [1, 4096]", Some(4096)),
    ("max_tokens should be in [1,512]", Some(512)),
    ("max_tokens: expected a value <= 4096 and >= 1", Some(4096)),
    (
        "max_tokens: expected a value >= 1 and <= 4096, got 8192",
        Some(4096),
    ),
    ("max_tokens is out of the range of 1..=4096", Some(4096)),
    ("max_tokens must be within 1..4096", Some(4096)),
    ("Valid values of max_tokens: 1-4096", Some(4096)),
    ("Valid values of max_tokens: 1 – 4,096", Some(4096)),
    ("max_tokens: minimum 1, maximum 4096", Some(4096)),
    (
        "max_tokens has to be at least 16 and at most 1024",
        Some(1024),
    ),
    ("max_tokens must be from 1 through 4096", Some(4096)),
    ("It must hold that 1 <= max_tokens <= 4096", Some(4096)),
    (
        "max_tokens: must be at most 4096 and not less than 16",
        Some(4096),
    ),
    (
        "Invalid input: max_tokens must be between 512 and 4096",
        Some(4096),
    ),
    (
        "max_tokens (8192) is larger than the maximum of 4096",
        Some(4096),
    ),
    (
        "max_tokens must be between 1 and 4096 (context window: 131072)",
        Some(4096),
    ),
    (
        "it has a maxOutputTokens value of 8192 but the supported range is from 1 (inclusive) to 4097 (exclusive)",
        Some(4096),
    ),
    ("max_tokens must be less than 4097", Some(4096)),
    // Too low to answer anything.
    ("max_tokens must be between 1 and 128", None),
    ("max_tokens must be at most 255", None),
    // The lower end is no limit, and the request is within the range.
    ("max_tokens must be at least 1024", None),
    ("max_tokens is less than the minimum of 1024", None),
    ("max_tokens cannot be less than 2048", None),
    ("max_tokens must be greater than 4096", None),
    ("max_tokens must be between 1024 and 16384", None),
    ("1024 <= max_tokens <= 16384", None),
    ("max_tokens: minimum 1024, maximum 16384", None),
];

#[test]
fn a_range_of_the_reply_is_known_by_its_upper_end() {
    let mut wrong = Vec::new();
    for (text, limit) in RANGES {
        let (error, changes) = refused(400, &error(text));
        if changes != limit.map(Change::MaxTokens) {
            wrong.push(format!("{text}: {changes:?} {error:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    let detail = json!({"detail": [{"loc": ["body", "max_tokens"], "msg": "Input should be less than or equal to 4096"}]});
    let (_, changes) = refused(422, &detail.to_string());
    assert_eq!(changes, Some(Change::MaxTokens(4096)));
}

#[test]
fn message_holds_the_reason_and_no_page() {
    let message = |status: u16, body: &str| refused(status, body).0.text().to_owned();
    let reason = "the server answered 400: bad thing";
    assert_eq!(message(400, &error("bad\nthing")), reason);
    assert_eq!(message(400, r#"{"message":"bad thing"}"#), reason);
    assert!(message(400, "<html><body>lots").contains("api_base"));
    let head = Head {
        status: 301,
        headers: vec![(
            "location".to_owned(),
            "https://new.example/v1?k=s".to_owned(),
        )],
    };
    let redirect = HostRefusal::read(301, Some(&head), "", UNIX_EPOCH);
    assert!(
        redirect
            .message()
            .ends_with("redirected to https://new.example/v1?...")
    );
}

#[test]
fn what_the_host_did_is_not_blamed_on_the_message() {
    let sample = |code: &str| json!({"error": {"message": "Failed.", "code": code, "failed_generation": "x"}});
    let filtered = json!({"error": {
        "message": "The response was filtered due to the prompt triggering the content policy.",
        "code": "content_filter",
        "param": "prompt",
    }});
    for (status, body, wanted) in [
        (400, sample("tool_use_failed").to_string(), "Transient"),
        (400, sample("json_validate_failed").to_string(), "Transient"),
        (422, sample("tool_use_failed").to_string(), "Transient"),
        (400, sample("output_parse_failed").to_string(), "Transient"),
        (400, sample("a_code_to_come").to_string(), "Transient"),
        (
            403,
            error("Your input was flagged by moderation"),
            "MessageRefused",
        ),
        (
            403,
            error("Country, region, or territory not supported"),
            "Rejected",
        ),
        (
            403,
            error("This service is not offered at your location"),
            "Rejected",
        ),
        (
            403,
            error("Project `p` does not have access to model `m`"),
            "NotFound",
        ),
        (
            403,
            error("The model `m` is blocked at the project level"),
            "NotFound",
        ),
        (
            403,
            error("Your API key lacks the permission"),
            "AuthFailed",
        ),
        (
            500,
            error("model requires more system memory (9.8 GiB) than is available (5.6 GiB)"),
            "Rejected",
        ),
        (500, error("CUDA error: out of memory"), "Rejected"),
        (400, filtered.to_string(), "MessageRefused"),
        (400, String::new(), "Rejected"),
        (422, "{}".to_owned(), "Rejected"),
    ] {
        assert_eq!(kind(&refused(status, &body).0), wanted, "{body}");
    }
}
