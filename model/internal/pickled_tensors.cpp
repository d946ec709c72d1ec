#include "model/internal/pickled_tensors.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "core/error.h"

namespace contexture::model::internal {
namespace {

constexpr size_t kMaxValues = 10'000'000;  // of the stack and of each list: far above any model's

struct Value;
using Values = std::vector<Value>;
struct Dict {
  std::vector<std::pair<std::string, PickledTensor>> tensors;
};
struct Global {
  std::string name;  // "module name"
};
struct Storage {
  std::string key;
  DType dtype = DType::F32;
  int64_t numel = 0;
};
struct Mark {};
struct Other {};  // None, floats, and what is made of values that don't matter

// What the stack holds. Containers are shared, since the memo refers to them.
struct Value {
  std::variant<Other, Mark, int64_t, std::string, Global, Storage, PickledTensor,
               std::shared_ptr<Values>, std::shared_ptr<Dict>>
      is;
};

std::optional<DType> storage_dtype(const std::string& name) {
  static const std::map<std::string, DType> types{
      {"torch FloatStorage", DType::F32}, {"torch DoubleStorage", DType::F64},
      {"torch HalfStorage", DType::F16},  {"torch BFloat16Storage", DType::BF16},
      {"torch LongStorage", DType::I64},  {"torch IntStorage", DType::I32},
      {"torch ShortStorage", DType::I16}, {"torch CharStorage", DType::I8},
      {"torch ByteStorage", DType::U8},   {"torch BoolStorage", DType::Bool}};
  const auto found = types.find(name);
  if (found == types.end()) return std::nullopt;
  return found->second;
}

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  std::map<std::string, PickledTensor> run() {
    while (step()) {
    }
    auto* dict = stack_.empty() ? nullptr : std::get_if<std::shared_ptr<Dict>>(&stack_.back().is);
    require(dict != nullptr, "it is not a dictionary of tensors");
    std::map<std::string, PickledTensor> out;
    for (auto& [name, tensor] : (*dict)->tensors)
      out.insert_or_assign(std::move(name), std::move(tensor));
    return out;
  }

 private:
  template <typename... Words>
  void require(bool condition, const Words&... words) const {
    CONTEXTURE_DATA_REQUIRE(
        condition, source_, ": its pickle, at byte ", at_, ": ", words...,
        ". Only a dictionary of tensors as torch.save writes it is read; nothing was run.");
  }
  std::string_view take(size_t n) {
    require(n <= bytes_.size() - at_, "the stream ends early");
    at_ += n;
    return bytes_.substr(at_ - n, n);
  }
  template <typename T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string line() {
    const size_t end = bytes_.find('\n', at_);
    require(end != std::string_view::npos && end - at_ < 1000, "a name does not end");
    std::string text(bytes_.substr(at_, end - at_));
    at_ = end + 1;
    return text;
  }
  template <typename T>
  void push(T value) {
    require(stack_.size() < kMaxValues, "too many values");
    stack_.push_back({std::move(value)});
  }
  Value pop() {
    require(!stack_.empty(), "the stack is empty");
    Value top = std::move(stack_.back());
    stack_.pop_back();
    return top;
  }
  template <typename T>
  T pop_as(const char* what) {
    Value top = pop();
    T* value = std::get_if<T>(&top.is);
    require(value != nullptr, "expected ", what);
    return std::move(*value);
  }
  template <typename T>
  T& top_as(const char* what) {
    T* value = stack_.empty() ? nullptr : std::get_if<T>(&stack_.back().is);
    require(value != nullptr, "expected ", what);
    return *value;
  }
  Values pop_to_mark() {
    size_t at = stack_.size();
    while (at > 0 && !std::holds_alternative<Mark>(stack_[at - 1].is)) --at;
    require(at > 0, "there is no mark");
    Values values(std::make_move_iterator(stack_.begin() + static_cast<int64_t>(at)),
                  std::make_move_iterator(stack_.end()));
    stack_.resize(at - 1);
    return values;
  }
  void push_tuple(Values values) { push(std::make_shared<Values>(std::move(values))); }
  void push_last(size_t n) {
    Values values(n);
    for (size_t i = n; i > 0; --i) values[i - 1] = pop();
    push_tuple(std::move(values));
  }
  void remember(uint64_t key) {
    require(!stack_.empty() && key < kMaxValues, "a memo of nothing");
    memo_[key] = stack_.back();
  }
  void recall(uint64_t key) {
    const auto found = memo_.find(key);
    require(found != memo_.end(), "recalls what was not remembered");
    push(Other{});
    stack_.back() = found->second;
  }

  void set(Dict& dict, Value key, Value value) const {
    auto* name = std::get_if<std::string>(&key.is);
    auto* tensor = std::get_if<PickledTensor>(&value.is);
    if (name != nullptr && tensor != nullptr)
      dict.tensors.emplace_back(std::move(*name), std::move(*tensor));
  }
  void set_all(Values values) {
    require(values.size() % 2 == 0, "a key without a value");
    auto& dict = top_as<std::shared_ptr<Dict>>("a dictionary");
    for (size_t i = 0; i < values.size(); i += 2)
      set(*dict, std::move(values[i]), std::move(values[i + 1]));
  }

  template <typename T>
  const T& argument(const Values& values, size_t i, const char* what) const {
    const T* value = i < values.size() ? std::get_if<T>(&values[i].is) : nullptr;
    require(value != nullptr, "expected ", what, " as argument ", i);
    return *value;
  }
  std::vector<int64_t> sizes(const Values& values, size_t i) const {
    std::vector<int64_t> out;
    for (const Value& value : *argument<std::shared_ptr<Values>>(values, i, "sizes")) {
      const int64_t* n = std::get_if<int64_t>(&value.is);
      require(n != nullptr && *n >= 0 && out.size() < 64,
              "sizes and strides are whole numbers from 0");
      out.push_back(*n);
    }
    return out;
  }

  // _rebuild_tensor_v2(storage, offset, shape, strides, ...)
  PickledTensor rebuild(const Values& arguments) const {
    const Storage& storage = argument<Storage>(arguments, 0, "a storage");
    PickledTensor tensor{storage.key,         storage.dtype,
                         storage.numel,       argument<int64_t>(arguments, 1, "an offset"),
                         sizes(arguments, 2), sizes(arguments, 3)};
    require(tensor.shape.size() == tensor.strides.size() && tensor.offset >= 0,
            "a tensor's sizes and strides disagree");
    int64_t last = tensor.offset, numel = 1;
    for (size_t d = 0; d < tensor.shape.size(); ++d) {
      int64_t extent = 0;
      require(!__builtin_mul_overflow(numel, tensor.shape[d], &numel) &&
                  !__builtin_mul_overflow(std::max<int64_t>(tensor.shape[d] - 1, 0),
                                          tensor.strides[d], &extent) &&
                  !__builtin_add_overflow(last, extent, &last),
              "a tensor's size overflows");
    }
    require(numel == 0 || last < tensor.storage_numel, "a tensor of ", numel,
            " elements leaves its storage of ", tensor.storage_numel);
    return tensor;
  }

  void reduce() {
    const auto arguments = pop_as<std::shared_ptr<Values>>("arguments");
    const Global function = pop_as<Global>("a function");
    if (function.name == "torch._utils _rebuild_tensor_v2") return push(rebuild(*arguments));
    if (function.name == "torch._utils _rebuild_parameter")
      return push(argument<PickledTensor>(*arguments, 0, "a tensor"));
    if (function.name == "collections OrderedDict") return push(std::make_shared<Dict>());
    require(false, "a call of ", function.name);
  }

  void global(std::string module, const std::string& name) {
    Global value{std::move(module) + " " + name};
    require(value.name == "torch._utils _rebuild_tensor_v2" ||
                value.name == "torch._utils _rebuild_parameter" ||
                value.name == "collections OrderedDict" || storage_dtype(value.name),
            "it names '", value.name, "', which is no part of a tensor");
    push(std::move(value));
  }

  // ('storage', type, key, device, numel)
  void persistent() {
    const auto id = pop_as<std::shared_ptr<Values>>("a storage's id");
    require(argument<std::string>(*id, 0, "'storage'") == "storage", "an id of another kind");
    const auto dtype = storage_dtype(argument<Global>(*id, 1, "a storage type").name);
    const std::string& key = argument<std::string>(*id, 2, "a storage's key");
    const int64_t numel = argument<int64_t>(*id, 4, "a storage's size");
    require(dtype.has_value() && numel >= 0 && key.find('/') == std::string::npos,
            "a storage that can't be");
    push(Storage{key, *dtype, numel});
  }

  void big_integer(size_t bytes) {
    require(bytes <= 8, "a number over 64 bits");
    const std::string_view text = take(bytes);
    uint64_t value = bytes > 0 && (text.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    std::memcpy(&value, text.data(), bytes);
    push(static_cast<int64_t>(value));
  }

  bool step() {
    const auto code = static_cast<unsigned char>(take(1)[0]);
    // clang-format off
    switch (code) {
      case 0x80: take(1); break;                                     // PROTO
      case 0x95: take(8); break;                                     // FRAME
      case '.': return false;                                        // STOP
      case '(': push(Mark{}); break;                                 // MARK
      case '0': pop(); break;                                        // POP
      case '}': push(std::make_shared<Dict>()); break;               // EMPTY_DICT
      case ']': case ')': push_tuple({}); break;                     // EMPTY_LIST, EMPTY_TUPLE
      case 't': push_tuple(pop_to_mark()); break;                    // TUPLE
      case 0x85: push_last(1); break;                                // TUPLE1
      case 0x86: push_last(2); break;                                // TUPLE2
      case 0x87: push_last(3); break;                                // TUPLE3
      case 'N': push(Other{}); break;                                // NONE
      case 0x88: case 0x89: push(int64_t{code == 0x88}); break;      // NEWTRUE, NEWFALSE
      case 'J': push(int64_t{number<int32_t>()}); break;             // BININT
      case 'K': push(int64_t{number<uint8_t>()}); break;             // BININT1
      case 'M': push(int64_t{number<uint16_t>()}); break;            // BININT2
      case 0x8a: big_integer(number<uint8_t>()); break;              // LONG1
      case 'G': take(8), push(Other{}); break;                       // BINFLOAT
      case 'X': push(std::string(take(number<uint32_t>()))); break;  // BINUNICODE
      case 0x8c: push(std::string(take(number<uint8_t>()))); break;  // SHORT_BINUNICODE
      case 'q': remember(number<uint8_t>()); break;                  // BINPUT
      case 'r': remember(number<uint32_t>()); break;                 // LONG_BINPUT
      case 0x94: remember(memo_.size()); break;                      // MEMOIZE
      case 'h': recall(number<uint8_t>()); break;                    // BINGET
      case 'j': recall(number<uint32_t>()); break;                   // LONG_BINGET
      case 'Q': persistent(); break;                                 // BINPERSID
      case 'R': reduce(); break;                                     // REDUCE
      case 'b': pop(), top_as<std::shared_ptr<Dict>>("a dictionary"); break;  // BUILD: attributes of an OrderedDict
      case 'u': set_all(pop_to_mark()); break;                       // SETITEMS
      case 's': push_last(2), set_all(*pop_as<std::shared_ptr<Values>>("a pair")); break;  // SETITEM
      case 'e': {                                                    // APPENDS
        Values values = pop_to_mark();
        auto& list = *top_as<std::shared_ptr<Values>>("a list");
        require(values.size() < kMaxValues - list.size(), "too many values");
        list.insert(list.end(), values.begin(), values.end());
        break;
      }
      case 'c': {                                                    // GLOBAL
        std::string module = line();
        global(std::move(module), line());
        break;
      }
      case 0x93: {                                                   // STACK_GLOBAL
        const std::string name = pop_as<std::string>("a name");
        global(pop_as<std::string>("a module"), name);
        break;
      }
      default:
        require(false, "the code ", int{code}, " has no place in it");
    }
    // clang-format on
    return true;
  }

  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0;
  Values stack_;
  std::map<uint64_t, Value> memo_;
};

}  // namespace

std::map<std::string, PickledTensor> read_pickled_tensors(std::string_view pickle,
                                                          const std::string& source) {
  return Reader(pickle, source).run();
}

}  // namespace contexture::model::internal
