/* What all worlds of ranks have in common: names of calls, and how long a rank waits for others. */
#include "nccl/world.h"

#include <cstdlib>

namespace chagres::reference {

namespace {

const char *const kDtypeNames[] = {"int8",    "uint8",   "int32",   "uint32",   "int64",      "uint64",
                                   "float16", "float32", "float64", "bfloat16", "float8e4m3", "float8e5m2"};
const char *const kOpNames[] = {"sum", "prod", "max", "min", "avg", "pre-multiplied sum"};

bool has_root(Collective kind) {
  return kind == Collective::Broadcast || kind == Collective::Reduce || kind == Collective::Gather ||
         kind == Collective::Scatter;
}

bool reduces(Collective kind) {
  return kind == Collective::AllReduce || kind == Collective::Reduce || kind == Collective::ReduceScatter;
}

}  // namespace

const char *nccl_dtype_name(int dtype) { return kDtypeNames[dtype]; }

bool same(const Signature &a, const Signature &b) {
  return a.kind == b.kind && a.count == b.count && a.dtype == b.dtype && (!reduces(a.kind) || a.op == b.op) &&
         (!has_root(a.kind) || a.root == b.root);
}

std::string signature_text(const Signature &signature) {
  if (signature.kind == Collective::Split) return collective_name(signature.kind);
  std::string out = text(collective_name(signature.kind), " of ", signature.count, " ", kDtypeNames[signature.dtype]);
  if (reduces(signature.kind)) out += text(", ", kOpNames[signature.op]);
  if (has_root(signature.kind)) out += text(", root ", signature.root);
  return out;
}

std::string symmetric_difference(int rank, const SymmetricPlaces &places, int other, const SymmetricPlaces &others) {
  if (places.send == others.send && places.receive == others.receive) return "";
  const auto side = [](const SymmetricPlaces &of) {
    const WindowPlace &place = of.receive.window != 0 ? of.receive : of.send;
    return place.window == 0 ? std::string("no window") : text("window ", place.window, " at byte ", place.offset);
  };
  return text("symmetric memory must lie at the same place of the same window on all ranks: rank ", rank, " has ",
              side(places), ", rank ", other, " has ", side(others));
}

const char *collective_name(Collective kind) {
  static const char *const names[] = {"AllReduce", "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AlltoAll",
                                      "Gather",    "Scatter",   "Split"};
  return names[static_cast<int>(kind)];
}

std::chrono::seconds collective_timeout() {
  static const std::chrono::seconds timeout = [] {
    const char *wanted = std::getenv("CHAGRES_REFERENCE_NCCL_TIMEOUT");
    const long seconds = wanted == nullptr ? 0 : std::strtol(wanted, nullptr, 10);
    return std::chrono::seconds(seconds > 0 ? seconds : 330);
  }();
  return timeout;
}

}  // namespace chagres::reference
