/* The file behind a communicator of several processes: opening, joining, failing, sleeping. */
#include "nccl/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <mutex>
#include <thread>

namespace chagres::reference {

namespace {

constexpr uint32_t kMagic = 0x63686731;
constexpr const char *kFolder = "/dev/shm";
constexpr const char *kPrefix = "chagres-nccl-";
constexpr off_t kGate = 1 << 20; /* the byte whose lock orders who joins; those below are of ranks */
constexpr off_t kOpened = kGate + 1; /* locked by each process that has the file open, so that none deletes it */

constexpr size_t kPage = 4096;
constexpr size_t round_up(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

/* All ranks' slots have at most 8 MiB, all channels' blocks too, unless there are so many that each would be too small. */
size_t slot_size(size_t ranks) {
  return round_up(std::min<size_t>(std::max<size_t>((size_t{8} << 20) / (2 * ranks), 16384), 262144));
}
size_t block_size(size_t ranks) {
  return round_up(std::min<size_t>(std::max<size_t>((size_t{8} << 20) / (2 * ranks * ranks), kPage), 65536));
}

std::string name_of(const WorldId &id) {
  char name[80];
  std::snprintf(name, sizeof(name), "%s%u-%016llx%016llx", kPrefix, geteuid(), static_cast<unsigned long long>(id.words[0]),
                static_cast<unsigned long long>(id.words[1]));
  return name;
}

int lock(int file, int command, short type, off_t first, off_t count) {
  struct flock range {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = first;
  range.l_len = count;
  int status;
  do status = fcntl(file, command, &range);
  while (status != 0 && errno == EINTR);
  return status;
}

/* Held while its scope is open. */
class Gate {
 public:
  explicit Gate(int file) : file_(file), held_(lock(file, F_OFD_SETLKW, F_WRLCK, kGate, 1) == 0) {}
  Gate(const Gate &) = delete;
  Gate &operator=(const Gate &) = delete;
  ~Gate() {
    if (held_) lock(file_, F_OFD_SETLK, F_UNLCK, kGate, 1);
  }
  bool held() const { return held_; }

 private:
  int file_;
  bool held_;
};

Outcome system_error(const std::string &what) {
  return {kNcclSystemError, text(what, ": ", std::strerror(errno))};
}

/* A process that ended before all ranks had joined has left its file: nobody holds a lock of it. */
void remove_stale_files() {
  DIR *folder = opendir(kFolder);
  if (folder == nullptr) return;
  const std::string ours = text(kPrefix, geteuid(), "-");
  while (const dirent *entry = readdir(folder)) {
    if (std::strncmp(entry->d_name, ours.c_str(), ours.size()) != 0) continue;
    const int file = openat(dirfd(folder), entry->d_name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;
    if (lock(file, F_OFD_SETLK, F_WRLCK, 0, kOpened + 1) == 0) unlinkat(dirfd(folder), entry->d_name, 0);
    close(file);
  }
  closedir(folder);
}

}  // namespace

Segment::Segment(int ranks, std::string path, int file)
    : ranks_(ranks), path_(std::move(path)), file_(file), own_(static_cast<size_t>(ranks)) {
  const auto n = static_cast<size_t>(ranks);
  control_bytes_ = round_up(sizeof(SharedHeader) + n * sizeof(SharedMember) + n * n * sizeof(SharedChannel));
  slot_bytes_ = slot_size(n);
  block_bytes_ = block_size(n);
  bytes_ = control_bytes_ + 2 * n * slot_bytes_ + 2 * n * n * block_bytes_;
}

Segment::~Segment() {
  if (memory_ != nullptr) {
    if (!is_ready() && failure().code != kNcclSuccess) unlink(path_.c_str()); /* nobody will join any more */
    munmap(memory_, bytes_);
  }
  close(file_);
}

Outcome Segment::open(const WorldId &id, int ranks, std::unique_ptr<Segment> *out) {
  static std::once_flag cleaned;
  std::call_once(cleaned, remove_stale_files);
  if (ranks > kMostRanks) {
    return {kNcclInvalidArgument, text("the reference joins at most ", kMostRanks, " ranks of several processes, got ", ranks)};
  }
  const std::string path = text(kFolder, "/", name_of(id));
  while (true) {
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return system_error(path);
    std::unique_ptr<Segment> made(new Segment(ranks, path, file));
    const Gate gate(file);
    if (!gate.held()) return system_error(text(path, " cannot be locked"));
    struct stat status {};
    if (fstat(file, &status) != 0) return system_error(path);
    if (status.st_uid != geteuid() || (status.st_mode & 077) != 0) {
      return {kNcclSystemError, text(path, " belongs to another user, or others can open it")};
    }
    if (status.st_nlink == 0) continue; /* who cleans up was faster */
    if (lock(file, F_OFD_SETLK, F_RDLCK, kOpened, 1) != 0) return system_error(text(path, " cannot be locked"));
    const Outcome outcome = made->begin();
    if (outcome.code != kNcclSuccess) return outcome;
    *out = std::move(made);
    return {};
  }
}

/* The gate is held. */
Outcome Segment::begin() {
  struct stat status {};
  if (fstat(file_, &status) != 0) return system_error(path_);
  if (status.st_size == 0) {
    if (ftruncate(file_, static_cast<off_t>(bytes_)) != 0) return system_error(path_);
  } else if (status.st_size != static_cast<off_t>(bytes_)) {
    return {kNcclInvalidArgument, text("argument \"nranks\" is ", ranks_, ", another rank says otherwise")};
  }
  Outcome outcome = reserve(control_bytes_);
  if (outcome.code != kNcclSuccess) return outcome;
  memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (memory_ == MAP_FAILED) {
    memory_ = nullptr;
    return system_error(path_);
  }
  char *next = static_cast<char *>(memory_) + sizeof(SharedHeader);
  const auto n = static_cast<size_t>(ranks_);
  members_ = reinterpret_cast<SharedMember *>(next);
  channels_ = reinterpret_cast<SharedChannel *>(next + n * sizeof(SharedMember));
  slots_ = static_cast<char *>(memory_) + control_bytes_;
  blocks_ = slots_ + 2 * n * slot_bytes_;
  if (header().magic.load() == kMagic) return {};
  header().ranks = static_cast<uint32_t>(ranks_); /* the rest of a new file is zero */
  header().magic.store(kMagic);
  return {};
}

/* Memory that is there: without room in /dev/shm the first write would end the process. */
Outcome Segment::reserve(size_t bytes) {
  int status;
  do status = posix_fallocate(file_, 0, static_cast<off_t>(bytes));
  while (status == EINTR);
  if (status == 0) return {};
  return {kNcclSystemError, text(kFolder, " has no room for ", bytes, " bytes that ranks share: ", std::strerror(status))};
}

Outcome Segment::join(int rank, int device) {
  std::lock_guard<std::mutex> among_threads(joining_);
  const Gate gate(file_);
  if (!gate.held()) return system_error(text(path_, " cannot be locked"));
  const Outcome failed = failure();
  if (failed.code != kNcclSuccess) return failed;
  SharedMember &own = member(rank);
  if (own.state.load() != kAbsent) return {kNcclInvalidArgument, text("Rank ", rank, " has joined this communicator already")};
  int joined = 1;
  for (int other = 0; other < ranks_; ++other) {
    if (member(other).state.load() == kAbsent) continue;
    ++joined;
    if (member(other).device == device) {
      return fail(kNcclInvalidUsage, text("Ranks ", other, " and ", rank, " both use device ", device,
                                          ": each rank needs a device of its own"));
    }
  }
  if (lock(file_, F_OFD_SETLK, F_WRLCK, rank, 1) != 0) return system_error(text(path_, " cannot be locked"));
  own_[static_cast<size_t>(rank)] = true;
  own.device = device;
  own.process = getpid();
  own.state.store(kJoined);
  if (joined < ranks_) return {};
  unlink(path_.c_str());
  const bool alone = std::all_of(own_.begin(), own_.end(), [](bool one) { return one; });
  const Outcome room = alone ? Outcome{} : reserve(bytes_);
  if (room.code != kNcclSuccess) return fail(room.code, room.text);
  header().ready.store(1);
  ring_all();
  return {};
}

Outcome Segment::fail(int code, const std::string &text) {
  uint32_t expected = 0;
  if (header().failing.compare_exchange_strong(expected, 1)) {
    header().code = code;
    const size_t length = std::min(text.size(), sizeof(header().text) - 1);
    std::memcpy(header().text, text.data(), length);
    header().text[length] = 0;
    header().failing.store(2);
  }
  ring_all();
  return failure();
}

Outcome Segment::failure() const {
  uint32_t state = header().failing.load();
  for (int look = 0; state == 1 && look < 1000; ++look) { /* its text is being written */
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    state = header().failing.load();
  }
  if (state == 0) return {};
  if (state == 1) return {kNcclRemoteError, "A rank's process ended while it told the others of a failure"};
  return {header().code, header().text};
}

void Segment::look_for_the_dead() {
  for (int rank = 0; rank < ranks_; ++rank) {
    const SharedMember &other = member(rank);
    if (other.state.load() != kJoined || own_[static_cast<size_t>(rank)]) continue;
    struct flock range {};
    range.l_type = F_WRLCK;
    range.l_whence = SEEK_SET;
    range.l_start = rank;
    range.l_len = 1;
    if (fcntl(file_, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK) continue;
    if (other.state.load() != kJoined) continue; /* it left meanwhile */
    fail(kNcclRemoteError, text("The process of rank ", rank, " (", other.process, ") has ended"));
  }
}

void Segment::ring(int rank) {
  SharedMember &woken = member(rank);
  ++woken.bell;
  if (woken.sleeping.load() != 0) syscall(SYS_futex, &woken.bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Segment::ring_all() {
  for (int rank = 0; rank < ranks_; ++rank) ring(rank);
}

void Segment::sleep(int rank, uint32_t value, std::chrono::microseconds most) {
  SharedMember &own = member(rank);
  struct timespec limit {};
  limit.tv_sec = most.count() / 1000000;
  limit.tv_nsec = most.count() % 1000000 * 1000;
  syscall(SYS_futex, &own.bell, FUTEX_WAIT, value, &limit, nullptr, 0);
}

}  // namespace chagres::reference
