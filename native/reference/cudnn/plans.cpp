/* Plans as text: the operations of a graph with all that was set, from which another process makes the same plan. */
#include <cctype>

#include "cudnn/handles.h"

namespace chagres::reference::cudnn {

namespace {

constexpr int kGraphHandle = 800, kPlanHandle = 400, kJson = 405;
constexpr char kBegin[] = "{\"chagres\":1,\"graph\":";
/* Operations name tensors and details: descriptors lie in one another no deeper. */
constexpr int kMostDepth = 4;

void write(const Descriptor &descriptor, std::string &into) {
  constexpr char kDigits[] = "0123456789abcdef";
  into += "{\"type\":" + std::to_string(descriptor.type) + ",\"values\":[";
  bool first = true;
  for (const auto &[name, value] : descriptor.values) {
    if (value.type == kHandleType) continue;
    into += first ? "" : ",";
    first = false;
    into += "[" + std::to_string(name) + "," + std::to_string(value.type) + "," + std::to_string(value.count) + ",";
    if (value.type == kDescriptorType) {
      into += "[";
      for (size_t i = 0; i < value.descriptors.size(); ++i) {
        into += i == 0 ? "" : ",";
        write(*value.descriptors[i], into);
      }
      into += "]]";
    } else {
      into += "\"";
      for (const char byte : value.bytes) {
        into += kDigits[(byte >> 4) & 15];
        into += kDigits[byte & 15];
      }
      into += "\"]";
    }
  }
  into += "]}";
}

/* Reads what write() wrote, and nothing else. */
class Reader {
 public:
  Reader(const char *text, size_t size) : at_(text), end_(text + size) {}

  void expect(const char *text) {
    for (; *text != 0; ++text, ++at_)
      CHAGRES_REQUIRE(at_ != end_ && *at_ == *text, kBadParam,
                      "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: expected what the CPU reference has written");
  }

  bool next(char wanted) {
    if (at_ == end_ || *at_ != wanted) return false;
    ++at_;
    return true;
  }

  int64_t number() {
    int64_t value = 0;
    int digits = 0;
    for (; at_ != end_ && *at_ >= '0' && *at_ <= '9' && digits < 12; ++at_, ++digits) value = 10 * value + (*at_ - '0');
    CHAGRES_REQUIRE(digits != 0, kBadParam,
                    "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: expected a number of the CPU reference");
    return value;
  }

  std::vector<char> bytes() {
    std::vector<char> all;
    expect("\"");
    while (!next('"')) all.push_back(static_cast<char>(16 * digit() + digit()));
    return all;
  }

  std::shared_ptr<const Descriptor> descriptor(const Value *handle, int depth) {
    CHAGRES_REQUIRE(depth <= kMostDepth, kBadParam,
                    "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: expected at most ", kMostDepth, " levels");
    auto made = std::make_shared<Descriptor>();
    expect("{\"type\":");
    made->type = static_cast<int>(number());
    if (made->type == kOperationGraph && handle != nullptr) made->values[kGraphHandle] = *handle;
    expect(",\"values\":[");
    for (bool first = true; !next(']'); first = false) {
      if (!first) expect(",");
      value(*made, depth);
    }
    expect("}");
    finalize(*made);
    return made;
  }

 private:
  const char *at_, *end_;

  int digit() {
    CHAGRES_REQUIRE(at_ != end_ && std::isxdigit(static_cast<unsigned char>(*at_)) != 0, kBadParam,
                    "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: expected bytes of the CPU reference");
    const char c = *at_++;
    return c <= '9' ? c - '0' : (c | 32) - 'a' + 10;
  }

  void value(Descriptor &into, int depth) {
    expect("[");
    const int name = static_cast<int>(number());
    expect(",");
    const int type = static_cast<int>(number());
    expect(",");
    const int64_t count = number();
    expect(",");
    if (type != kDescriptorType) {
      const std::vector<char> all = bytes();
      CHAGRES_REQUIRE(type != kHandleType && attribute_size(type) * static_cast<size_t>(count) == all.size(), kBadParam,
                      "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: expected as many bytes as elements have");
      set_attribute(into, name, type, count, all.data());
    } else {
      const Attribute &wanted = attribute(into.type, name);
      Value held{kDescriptorType, count, {}, {}};
      expect("[");
      for (int64_t i = 0; i < count; ++i) {
        if (i != 0) expect(",");
        held.descriptors.push_back(descriptor(nullptr, depth + 1));
      }
      expect("]");
      CHAGRES_REQUIRE(wanted.type_is(kDescriptorType) && count >= wanted.least && count <= wanted.most, kBadParam,
                      wanted.text, ": expected ", wanted.least, " to ", wanted.most, " descriptors, got ", count);
      into.values[name] = std::move(held);
    }
    expect("]");
  }
};

}  // namespace

std::string plan_text(const Descriptor &plan) {
  constexpr int kConfiguration = 401, kEngineName = 300, kGraphName = 1300;
  if (plan.has(kJson)) return std::string(plan.values.at(kJson).bytes.begin(), plan.values.at(kJson).bytes.end());
  std::string text = kBegin;
  write(plan.descriptor(kConfiguration).descriptor(kEngineName).descriptor(kGraphName), text);
  return text + "}";
}

std::shared_ptr<const Graph> planned_graph(const Descriptor &plan) {
  const Value &json = plan.values.at(kJson);
  CHAGRES_REQUIRE(plan.has(kPlanHandle), kBadParam,
                  "CUDNN_ATTR_EXECUTION_PLAN_HANDLE: expected a handle for a plan that is read");
  Reader reader(json.bytes.data(), json.bytes.size());
  reader.expect(kBegin);
  const auto made = reader.descriptor(&plan.values.at(kPlanHandle), 0);
  reader.expect("}");
  CHAGRES_REQUIRE(made->type == kOperationGraph, kBadParam,
                  "CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION: expected a graph, got ", descriptor_name(made->type));
  check_support(*made->graph);
  return made->graph;
}

}  // namespace chagres::reference::cudnn
