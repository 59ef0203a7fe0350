// asymkv chat: a conversation in the terminal, with the formats its cache really has.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/interrupt.h"
#include "asymkv/base/progress.h"
#include "asymkv/base/utf8.h"
#include "asymkv/runtime/backends.h"
#include "chat_input.h"
#include "chat_session.h"
#include "command.h"
#include "kv_options.h"
#include "option_values.h"
#include "run_record.h"
#include "served_policy.h"

namespace asymkv::app {
namespace {

constexpr int64_t kDefaultContext = 8192;  // tokens; a cache of the whole context of a long-context model fills memory

struct ChatArguments {
  std::string model;
  std::string system;
  std::string chat_template;
  KvOptions kv;
  ServedPolicy policy;
  int64_t max_tokens = 1024;
  int64_t context = 0;
  SamplingOptions sampling;
  std::string device = "cpu";
  int activations = 32;
};

constexpr const char* kHelp =
    "  /kv             formats of keys and values as allocated and launched, bytes in use\n"
    "  /system TEXT    sets the system message, for the next message on; without TEXT removes it\n"
    "  /reset          forgets the conversation\n"
    "  /save FILE      writes messages and record as JSON\n"
    "  /quit           leaves; so does Ctrl-D, or Ctrl-C twice\n"
    "A line that ends in a backslash goes on in the next one; a block between \"\"\" and \"\"\" may have any lines.\n"
    "Ctrl-C stops an answer.\n";

// The program around one conversation.
class Chat {
 public:
  Chat(const ChatArguments& args, LoadedModel& model)
      : args_(args),
        model_(model),
        kv_(resolve_kv(args.kv, model)),
        context_(context_tokens(args, model)),
        cache_(make_cache_for(model, kv_, context_)),
        session_(model, *cache_, find_template(args, model), {args.max_tokens, context_, kv_.native_dtype},
                 args.sampling) {
    args.policy.require(model, *cache_, "worker", context_);
    session_.set_system(args.system);
  }

  int run() {
    if (input_.is_terminal()) {
      fmt::print("{}: keys {}, values {}, context of {} tokens. /help lists commands.\n", model_.files.name(),
                 kv_.format.key.id(), kv_.format.value.id(), context_);
    }
    std::string message;
    bool asked_to_leave = false;  // one Ctrl-C at the prompt
    while (true) {
      switch (input_.next(message)) {
        case ChatInput::Event::kEnd:
          if (input_.is_terminal()) fmt::print("\n");
          return 0;
        case ChatInput::Event::kInterrupted:
          clear_interrupt();
          throw_if_interrupted("the conversation is over");  // SIGTERM
          if (asked_to_leave || !input_.is_terminal()) {
            fmt::print("\n");
            return input_.is_terminal() ? 0 : exit_code(ErrorCode::kInterrupted);
          }
          asked_to_leave = true;
          fmt::print("\n(Ctrl-C again leaves, /help lists commands)\n");
          continue;
        case ChatInput::Event::kMessage:
          asked_to_leave = false;
          break;
      }
      if (message.find_first_not_of(" \t\n") == std::string::npos) continue;
      if (!handle(message)) return 0;
    }
  }

 private:
  static int64_t context_tokens(const ChatArguments& args, const LoadedModel& model) {
    const int64_t most = model.config().max_position_embeddings;
    if (args.context > most) {
      throw_usage("--context {} is more than the {} positions of the model", args.context, most);
    }
    return args.context > 0 ? args.context : std::min(args.policy.most_context_tokens(most), kDefaultContext);
  }

  static ChatTemplate find_template(const ChatArguments& args, const LoadedModel& model) {
    if (!args.chat_template.empty()) {
      return ChatTemplate::parse(read_text_file(args.chat_template), args.chat_template);
    }
    std::optional<ChatTemplate> found = find_chat_template(model);
    if (!found) {
      throw_unsupported("{} has no chat template; give one with --chat-template FILE, or use generate",
                        model.files.path.string());
    }
    return *std::move(found);
  }

  // False ends the program. At a terminal an error is told and the conversation goes on.
  bool handle(const std::string& message) {
    try {
      require_utf8(message, "the message");
      if (message.starts_with('/')) return run_command(message);
      answer(message);
    } catch (const Error& e) {
      const bool can_go_on = e.code() == ErrorCode::kUsage || e.code() == ErrorCode::kBadInput ||
                             e.code() == ErrorCode::kUnsupported || e.code() == ErrorCode::kResourceExhausted;
      if (!input_.is_terminal() || !can_go_on) throw;
      fmt::print("{}\n", e.what());
    }
    return true;
  }

  void answer(const std::string& message) {
    const Answer answer = session_.ask(message, [](std::string_view piece) {
      fmt::print("{}", piece);
      std::fflush(stdout);
    });
    fmt::print("\n");
    std::fflush(stdout);
    clear_interrupt();
    throw_if_interrupted("the conversation is over");  // SIGTERM
    if (answer.end == AnswerEnd::kContextFull) {
      print_note("[the context of {} tokens is full: /reset starts a new conversation]\n", context_);
    }
    if (answer.end == AnswerEnd::kLength) print_note("[stopped at --max-tokens {}]\n", args_.max_tokens);
    if (!input_.is_terminal()) return;
    if (answer.end == AnswerEnd::kInterrupted) fmt::print("[stopped]\n");
    fmt::print("[{} tokens, {} of them from the cache, read at {:.1f}/s; {} new at {:.1f}/s]\n", answer.prompt_tokens,
               answer.reused_tokens, token_rate(answer.prompt_tokens - answer.reused_tokens, answer.prefill_seconds),
               answer.new_tokens, token_rate(answer.new_tokens - 1, answer.decode_seconds));
  }

  bool run_command(const std::string& line) {
    const size_t space = line.find_first_of(" \n");
    const std::string name = line.substr(0, space);
    const size_t begin = space == std::string::npos ? std::string::npos : line.find_first_not_of(" \n", space);
    const std::string rest = begin == std::string::npos ? std::string() : line.substr(begin);
    if (name == "/quit" || name == "/exit") return false;
    if (name == "/help") {
      fmt::print("{}", kHelp);
    } else if (name == "/kv") {
      print_kv();
    } else if (name == "/reset") {
      session_.reset();
    } else if (name == "/system") {
      session_.set_system(rest);
    } else if (name == "/save") {
      save(rest);
    } else {
      throw_usage("{} is no command; /help lists them", name);
    }
    return true;
  }

  void save(const std::string& path) {
    if (path.empty()) throw_usage("/save needs the name of a file");
    OrderedJson file = {{"messages", session_.messages()}};
    const Json record = make_run_record(model_, *cache_, {args_.kv.kv, args_.kv.scale}, clock_);
    file["record"] = OrderedJson::parse(record.dump());
    write_file_atomic(path, file.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
    if (input_.is_terminal()) fmt::print("saved {} messages to {}\n", session_.messages().size(), path);
  }

  void print_kv() {
    const Json record = make_run_record(model_, *cache_, {args_.kv.kv, args_.kv.scale}, clock_);
    for (const char* side : {"key", "value"}) {
      const Json& facts = record.at(side);
      fmt::print("{:<6} requested {}, resolved {}, allocated {} ({} scales)\n", side, text(facts, "requested"),
                 text(facts, "resolved"), text(facts.at("allocated"), "format"), text(facts.at("allocated"), "scale"));
      if (!facts.at("launched").is_array()) {
        fmt::print("       launched: nothing yet\n");
        continue;
      }
      for (const Json& kernel : facts.at("launched")) {
        fmt::print("       launched: {} {} on {}, {} times\n", text(kernel, "family"), text(kernel, "instance"),
                   text(kernel, "format"), kernel.value("count", int64_t{0}));
      }
    }
    const CacheInventory inventory = cache_->inventory();
    const int64_t page_size = cache_->layout().geometry().page_size;
    const int64_t page_bytes = inventory.num_pages > 0 ? inventory.planes.total() / inventory.num_pages : 0;
    const int64_t used_pages = (session_.num_tokens() + page_size - 1) / page_size;
    fmt::print("scales {}; {} bytes a token, scales included\n", cache_->config().scale_source, page_bytes / page_size);
    fmt::print("{} tokens in {} of {} pages: {} of {} bytes\n", session_.num_tokens(), used_pages, inventory.num_pages,
               used_pages * page_bytes, inventory.total());
  }

  static std::string text(const Json& object, const char* field) {
    const auto it = object.find(field);
    if (it == object.end() || it->is_null()) return "unset";
    return it->is_string() ? it->get<std::string>() : it->dump();
  }

  const ChatArguments& args_;
  LoadedModel& model_;
  const RunClock clock_;
  ChatInput input_;
  ResolvedKv kv_;
  int64_t context_;
  std::unique_ptr<KvCache> cache_;
  ChatSession session_;
};

int run(ChatArguments& args) {
  check_sampling_options(args.sampling);
  require_utf8(args.system, "--system");
  args.policy.apply(args.kv);
  const auto model = load_model(args.model, select_backends(args.device, parse_activations(args.activations)));
  return Chat(args, *model).run();
}

}  // namespace

void add_chat_command(CLI::App& root, Action& action) {
  auto args = std::make_shared<ChatArguments>();
  CLI::App* command = root.add_subcommand("chat", "a conversation in the terminal");
  command->add_option("MODEL", args->model, "model folder (safetensors) or .gguf file")->required();
  command->add_option("--system", args->system, "system message");
  command->add_option("--chat-template", args->chat_template, "template file instead of the model's own");
  add_kv_options(*command, args->kv);
  args->policy.add_option(*command);
  command->add_option("--max-tokens", args->max_tokens, "most tokens of one answer")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command
      ->add_option("--context", args->context,
                   "tokens the cache holds; default: the model's or the policy's, at most 8192")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  add_sampling_options(*command, args->sampling);
  add_device_option(*command, args->device);
  add_activations_option(*command, args->activations);
  command->footer(
      "Examples:\n"
      "  asymkv chat qwen2.5-coder-0.5b-instruct-q4_k_m.gguf --kv k16v8\n"
      "  asymkv chat qwen2.5-coder-0.5b-instruct-q4_k_m.gguf --policy run/policy.json");
  command->callback([&action, args] { action = [args] { return run(*args); }; });
}

}  // namespace asymkv::app
