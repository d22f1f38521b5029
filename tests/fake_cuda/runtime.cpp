// A CUDA runtime without a GPU, for tests: torch's own CUDA code runs on it.
//
// Memory, copies, streams, events and contexts are real, in the memory of this process. Kernels do nothing: kernels.py
// computes operations on the CPU instead. CUDA graphs, IPC, memory pools and peer access do not exist, and answer
// cudaErrorNotSupported.
//
// A stream is a queue of work. CUDA promises only an order: within a stream, and where a stream waits for an event. A
// program that relies on more is wrong, although it is right on an idle GPU, where all work is done at once. Here
// FAKE_CUDA_SCHEDULE decides when work is done:
//
//   eager        at once, as on an idle GPU
//   late         when the host waits for it, or another stream that is waited for
//   side-late    default streams at once, others late: a missing wait for a copy reads memory that is not written yet
//   main-late    default streams late, others at once: memory that is reused too early is overwritten before it is read
//   random:SEED  each stream goes on by chance
//
// FAKE_CUDA_DEVICES (1) and FAKE_CUDA_MEMORY (bytes of each, 4 GiB) say what the machine has.
//
// Work is done by the thread that waits for it, under one lock for everything.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <sys/mman.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {

using Time = std::chrono::steady_clock::time_point;
using Work = std::function<void()>;

std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

const std::string& setting(const char* name, const char* otherwise) {
  static std::map<std::string, std::string> read;
  auto [found, fresh] = read.try_emplace(name);
  if (fresh) found->second = getenv(name) ? getenv(name) : otherwise;
  return found->second;
}

// --- what tests count ------------------------------------------------------------------------------------------------

#define COUNTERS(X)                                                                                                    \
  X(contexts) X(streams) X(streams_used) X(events) X(launches)                                                         \
  X(device_allocs) X(device_frees) X(device_bytes) X(host_allocs) X(host_frees) X(host_bytes)                          \
  X(copies_to_device) X(copies_to_device_pageable) X(copies_to_host) X(copies_to_host_pageable) X(copies_on_device)    \
  X(stream_syncs) X(event_syncs) X(device_syncs) X(missing)

struct Counters {
#define DECLARE(name) long long name = 0;
  COUNTERS(DECLARE)
#undef DECLARE
} counters;

// --- devices ---------------------------------------------------------------------------------------------------------

constexpr int MOST_DEVICES = 16;

struct Stream;
using StreamPtr = std::shared_ptr<Stream>;

struct Device {
  bool has_context = false;
  size_t used = 0;
  StreamPtr default_stream;
} devices[MOST_DEVICES];

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t fail(cudaError_t error) { return last_error = error; }

int device_count() {
  static const int count = std::min(MOST_DEVICES, atoi(setting("FAKE_CUDA_DEVICES", "1").c_str()));
  return count;
}

size_t capacity() {
  static const size_t bytes = strtoull(setting("FAKE_CUDA_MEMORY", "4294967296").c_str(), nullptr, 10);
  return bytes;
}

// Most calls make a context on the current device where there is none: hundreds of MB on a real GPU.
void need_context() {
  if (!devices[current].has_context) {
    devices[current].has_context = true;
    counters.contexts++;
  }
}

// --- streams ---------------------------------------------------------------------------------------------------------

struct Stream {
  int device;
  bool is_default;
  bool is_blocking;  // waits for the default stream of its device, which waits for it
  std::deque<Work> queue;
  long long pushed = 0, done = 0;
};

std::map<cudaStream_t, StreamPtr> streams;  // others than the default ones

StreamPtr stream_of(cudaStream_t handle) {
  if (handle == nullptr || handle == cudaStreamLegacy || handle == cudaStreamPerThread) {
    need_context();
    StreamPtr& stream = devices[current].default_stream;
    if (!stream) stream = std::make_shared<Stream>(Stream{current, true, true, {}});
    return stream;
  }
  auto found = streams.find(handle);
  if (found == streams.end()) {
    fprintf(stderr, "fake CUDA: a stream %p that was never made, or is gone\n", static_cast<void*>(handle));
    abort();
  }
  return found->second;
}

std::vector<StreamPtr> streams_on(int device) {
  std::vector<StreamPtr> found;
  for (auto& [handle, stream] : streams)
    if (stream->device == device) found.push_back(stream);
  if (devices[device].default_stream) found.push_back(devices[device].default_stream);
  return found;
}

// Do the work of a stream up to its n-th piece. A piece may wait for another stream, but only for what was there before
// it: there are no circles.
void run(Stream& stream, long long until) {
  while (stream.done < until && !stream.queue.empty()) {
    Work work = std::move(stream.queue.front());
    stream.queue.pop_front();
    work();
    stream.done++;
  }
}

void run_all(Stream& stream) { run(stream, stream.pushed); }

void run_device(int device) {
  for (auto& stream : streams_on(device)) run_all(*stream);
}

bool is_random() { return setting("FAKE_CUDA_SCHEDULE", "eager").rfind("random", 0) == 0; }

bool runs_at_once(const Stream& stream) {
  const std::string& schedule = setting("FAKE_CUDA_SCHEDULE", "eager");
  if (schedule == "eager") return true;
  if (schedule == "side-late") return stream.is_default;
  if (schedule == "main-late") return !stream.is_default;
  if (schedule == "late" || is_random()) return false;
  fprintf(stderr, "fake CUDA: expected a FAKE_CUDA_SCHEDULE, found %s\n", schedule.c_str());
  abort();
}

// In the schedule `random`: each stream does a piece of its work, or does not.
void maybe_go_on() {
  if (!is_random()) return;
  static std::mt19937 draw(atoi(setting("FAKE_CUDA_SCHEDULE", "").substr(6).erase(0, 1).c_str()));
  for (int device = 0; device < device_count(); device++)
    for (auto& stream : streams_on(device))
      if (draw() % 3 == 0) run(*stream, stream->done + 1);
}

void enqueue(const StreamPtr& stream, Work work) {
  if (!stream->pushed && !stream->is_default) counters.streams_used++;  // torch makes 32 of them at once
  stream->queue.push_back(std::move(work));
  stream->pushed++;
}

void wait_for(const StreamPtr& stream, const StreamPtr& other, long long until) {
  enqueue(stream, [other, until] { run(*other, until); });
}

// Queue work. torch's streams do not block, but those that cudaStreamCreate makes take turns with the default stream.
void push(const StreamPtr& stream, Work work) {
  if (stream->is_default) {
    for (auto& other : streams_on(stream->device))
      if (other->is_blocking && other->done < other->pushed && other != stream) wait_for(stream, other, other->pushed);
  } else if (stream->is_blocking && devices[stream->device].default_stream) {
    wait_for(stream, devices[stream->device].default_stream, devices[stream->device].default_stream->pushed);
  }
  enqueue(stream, std::move(work));
  if (runs_at_once(*stream)) run_all(*stream);
  maybe_go_on();
}

cudaError_t make_stream(cudaStream_t* handle, bool is_blocking) {
  Lock lock(mutex);
  need_context();
  counters.streams++;
  auto stream = std::make_shared<Stream>(Stream{current, false, is_blocking, {}});
  *handle = reinterpret_cast<cudaStream_t>(stream.get());
  streams[*handle] = stream;
  return cudaSuccess;
}

// --- events ----------------------------------------------------------------------------------------------------------

struct Event {
  bool has_time;
  StreamPtr stream = nullptr;  // where it was recorded last
  long long position = 0;      // done once that stream has done so many pieces of work
  int recorded = 0;            // times
  int asked = 0;               // whether it is done, since it was recorded
  Time when = {};

  bool is_done() const { return !stream || stream->done >= position; }
};

std::map<cudaEvent_t, std::shared_ptr<Event>> events;

std::shared_ptr<Event> event_of(cudaEvent_t handle) {
  auto found = events.find(handle);
  return found == events.end() ? nullptr : found->second;
}

// A GPU goes on meanwhile: who asks again and again gets an answer at last.
constexpr int PATIENCE = 2000;

// --- memory ----------------------------------------------------------------------------------------------------------

enum class Where { device, pinned, registered };

struct Block {
  size_t size;
  int device;
  Where where;
};

std::map<char*, Block> blocks;

// The block that an address is in, with what is left of it from there on; null: usual memory of the process.
const Block* block_of(const void* address, size_t* left = nullptr) {
  auto place = static_cast<char*>(const_cast<void*>(address));
  auto next = blocks.upper_bound(place);
  if (next == blocks.begin()) return nullptr;
  auto& [start, block] = *std::prev(next);
  if (place >= start + block.size) return nullptr;
  if (left) *left = start + block.size - place;
  return &block;
}

cudaError_t allocate(void** address, size_t bytes, Where where) {
  Lock lock(mutex);
  need_context();
  const size_t size = (std::max<size_t>(bytes, 1) + 4095) / 4096 * 4096;
  size_t& used = devices[current].used;
  *address = nullptr;
  if (where == Where::device && used + size > capacity()) return fail(cudaErrorMemoryAllocation);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return fail(cudaErrorMemoryAllocation);
  memset(memory, 0xAB, size);  // nobody shall rely on zeros
  blocks[static_cast<char*>(memory)] = {size, current, where};
  if (where == Where::device) {
    counters.device_allocs++, counters.device_bytes += size, used += size;
  } else {
    counters.host_allocs++, counters.host_bytes += size;
  }
  *address = memory;
  return cudaSuccess;
}

cudaError_t release(void* address, bool of_host) {
  Lock lock(mutex);
  if (!address) return cudaSuccess;
  auto found = blocks.find(static_cast<char*>(address));
  if (found == blocks.end() || (found->second.where != Where::device) != of_host) return fail(cudaErrorInvalidValue);
  const Block block = found->second;
  run_device(block.device);  // cudaFree and cudaFreeHost wait for the device
  if (block.where == Where::device) {
    counters.device_frees++, counters.device_bytes -= block.size, devices[block.device].used -= block.size;
  } else {
    counters.host_frees++, counters.host_bytes -= block.size;
  }
  if (block.where != Where::registered) munmap(address, block.size);
  blocks.erase(found);
  return cudaSuccess;
}

// The driver copies so many bytes of pageable memory aside, and goes on; with more, it waits for the stream.
constexpr size_t STAGED = 64 << 10;

cudaError_t copy(void* target, const void* source, size_t bytes, cudaStream_t handle, bool waits) {
  Lock lock(mutex);
  need_context();
  size_t room = bytes, there = bytes;
  const Block *to = block_of(target, &room), *from = block_of(source, &there);
  if (bytes > room || bytes > there) return fail(cudaErrorInvalidValue);
  const bool to_device = to && to->where == Where::device, from_device = from && from->where == Where::device;
  StreamPtr stream = stream_of(handle);
  if (to_device && !from_device) {
    counters.copies_to_device++;
    if (!from) counters.copies_to_device_pageable++;
  } else if (from_device && !to_device) {
    counters.copies_to_host++;
    if (!to) counters.copies_to_host_pageable++;
    waits |= !to;
  } else {
    counters.copies_on_device++;
  }
  if (to_device && !from && bytes <= STAGED) {
    auto held = std::make_shared<std::string>(static_cast<const char*>(source), bytes);
    push(stream, [=] { memcpy(target, held->data(), held->size()); });
  } else {
    push(stream, [=] { memmove(target, source, bytes); });  // what is there when its turn comes
    waits |= to_device && !from;
  }
  if (waits) run_all(*stream);
  return cudaSuccess;
}

cudaError_t fill(void* target, int value, size_t bytes, cudaStream_t handle, bool waits) {
  Lock lock(mutex);
  StreamPtr stream = stream_of(handle);
  push(stream, [=] { memset(target, value, bytes); });
  if (waits) run_all(*stream);
  return cudaSuccess;
}

cudaError_t launch(cudaStream_t handle) {
  Lock lock(mutex);
  counters.launches++;
  push(stream_of(handle), [] {});
  return cudaSuccess;
}

std::string last_missing;

}  // namespace

// --- for tests, by ctypes --------------------------------------------------------------------------------------------

// A counter by its name; -1 where there is none of this name.
API long long fake_cuda_count(const char* name) {
  Lock lock(mutex);
#define FIND(each) \
  if (!strcmp(name, #each)) return counters.each;
  COUNTERS(FIND)
#undef FIND
  return -1;
}

API int fake_cuda_has_context(int device) { return devices[device].has_context; }

// Do what was queued in a stream so far. Nobody waits for that: it is the turn of a kernel, which kernels.py computes.
API void fake_cuda_reach(int device, cudaStream_t handle) {
  Lock lock(mutex);
  const int before = current;
  current = device;
  counters.launches++;
  run_all(*stream_of(handle));
  current = before;
}

// Called by the functions of the runtime that are not here, each of which is a weak symbol made by build.py.
API cudaError_t fake_cuda_missing(const char* name) {
  Lock lock(mutex);
  counters.missing++;
  last_missing = name;
  return fail(cudaErrorNotSupported);
}

API const char* fake_cuda_last_missing() { return last_missing.c_str(); }

// --- devices and errors ----------------------------------------------------------------------------------------------

API cudaError_t cudaGetDeviceCount(int* count) { return *count = device_count(), cudaSuccess; }
API cudaError_t cudaGetDevice(int* device) { return *device = current, cudaSuccess; }

API cudaError_t cudaSetDevice(int device) {
  Lock lock(mutex);
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
  current = device;
  need_context();  // since CUDA 12
  return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize() {
  Lock lock(mutex);
  need_context();
  counters.device_syncs++;
  run_device(current);
  return cudaSuccess;
}

API cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

API cudaError_t cudaPeekAtLastError() { return last_error; }

API const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNotReady: return "device not ready";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorNotSupported: return last_missing.c_str();
    default: return "an error of the fake CUDA runtime";
  }
}

API const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }
API cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
API cudaError_t cudaDriverGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }

// An H100's figures, where torch looks at them.
API cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device) {
  cudaDeviceProp properties = {};
  snprintf(properties.name, sizeof properties.name, "Fake H100 (no GPU)");
  properties.uuid.bytes[0] = static_cast<char>(device);
  properties.major = 9;
  properties.totalGlobalMem = capacity();
  properties.multiProcessorCount = 132;
  properties.warpSize = 32;
  properties.maxThreadsPerBlock = properties.maxThreadsDim[0] = properties.maxThreadsDim[1] = 1024;
  properties.maxThreadsDim[2] = 64;
  properties.maxThreadsPerMultiProcessor = 2048;
  properties.maxGridSize[0] = 2147483647;
  properties.maxGridSize[1] = properties.maxGridSize[2] = 65535;
  properties.sharedMemPerBlock = 48 << 10;
  properties.sharedMemPerBlockOptin = 227 << 10;
  properties.regsPerBlock = properties.regsPerMultiprocessor = 65536;
  properties.l2CacheSize = 50 << 20;
  properties.textureAlignment = 512;
  properties.unifiedAddressing = properties.concurrentKernels = properties.canMapHostMemory = 1;
  *found = properties;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  const std::map<cudaDeviceAttr, int> known = {
      {cudaDevAttrComputeCapabilityMajor, 9}, {cudaDevAttrMultiProcessorCount, 132}, {cudaDevAttrWarpSize, 32}};
  const auto found = known.find(attribute);
  *value = found == known.end() ? 0 : found->second;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetPCIBusId(char* name, int length, int device) {
  snprintf(name, length, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return cudaSuccess;
}

API cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }

API cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Lock lock(mutex);
  need_context();
  *total = capacity(), *free = capacity() - devices[current].used;
  return cudaSuccess;
}

// --- memory ----------------------------------------------------------------------------------------------------------

API cudaError_t cudaMalloc(void** address, size_t bytes) { return allocate(address, bytes, Where::device); }
API cudaError_t cudaFree(void* address) { return release(address, false); }
API cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) { return allocate(address, bytes, Where::pinned); }
API cudaError_t cudaMallocHost(void** address, size_t bytes) { return allocate(address, bytes, Where::pinned); }
API cudaError_t cudaFreeHost(void* address) { return release(address, true); }
API cudaError_t cudaHostUnregister(void* address) { return release(address, true); }

API cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  Lock lock(mutex);
  need_context();
  if (block_of(address)) return fail(cudaErrorHostMemoryAlreadyRegistered);
  blocks[static_cast<char*>(address)] = {bytes, current, Where::registered};
  counters.host_allocs++, counters.host_bytes += bytes;
  return cudaSuccess;
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* found, const void* address) {
  Lock lock(mutex);
  *found = {};
  const Block* block = block_of(address);
  if (!block) return found->type = cudaMemoryTypeUnregistered, cudaSuccess;
  found->type = block->where == Where::device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  found->device = block->device;
  found->devicePointer = const_cast<void*>(address);
  found->hostPointer = block->where == Where::device ? nullptr : const_cast<void*>(address);
  return cudaSuccess;
}

API cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind) {
  return copy(target, source, bytes, nullptr, true);
}

API cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(target, source, bytes, stream, false);
}

API cudaError_t cudaMemcpyPeerAsync(void* target, int, const void* source, int, size_t bytes, cudaStream_t stream) {
  return copy(target, source, bytes, stream, false);
}

API cudaError_t cudaMemset(void* target, int value, size_t bytes) { return fill(target, value, bytes, nullptr, true); }

API cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t stream) {
  return fill(target, value, bytes, stream, false);
}

// --- streams and events ----------------------------------------------------------------------------------------------

API cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make_stream(stream, true); }

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return make_stream(stream, !(flags & cudaStreamNonBlocking));
}

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return make_stream(stream, !(flags & cudaStreamNonBlocking));
}

API cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  Lock lock(mutex);
  run_all(*stream_of(handle));
  streams.erase(handle);
  return cudaSuccess;
}

API cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) { return *priority = 0, cudaSuccess; }

API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  Lock lock(mutex);
  counters.stream_syncs++;
  run_all(*stream_of(handle));
  return cudaSuccess;
}

API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  Lock lock(mutex);
  maybe_go_on();
  return stream_of(handle)->queue.empty() ? cudaSuccess : fail(cudaErrorNotReady);
}

API cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t call, void* argument) {
  Lock lock(mutex);
  push(stream_of(handle), [=] { call(argument); });
  return cudaSuccess;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t* handle, unsigned flags) {
  Lock lock(mutex);
  need_context();
  counters.events++;
  auto event = std::make_shared<Event>(Event{!(flags & cudaEventDisableTiming)});
  *handle = reinterpret_cast<cudaEvent_t>(event.get());
  events[*handle] = event;
  return cudaSuccess;
}

API cudaError_t cudaEventCreate(cudaEvent_t* handle) { return cudaEventCreateWithFlags(handle, cudaEventDefault); }

API cudaError_t cudaEventDestroy(cudaEvent_t handle) {
  Lock lock(mutex);
  events.erase(handle);  // work that is queued still holds it
  return cudaSuccess;
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t on, unsigned) {
  Lock lock(mutex);
  auto event = event_of(handle);
  StreamPtr stream = stream_of(on);
  if (!event) return fail(cudaErrorInvalidResourceHandle);
  event->stream = stream, event->asked = 0;
  const int recorded = ++event->recorded;
  push(stream, [event, recorded] {
    if (event->recorded == recorded) event->when = std::chrono::steady_clock::now();
  });
  event->position = stream->pushed;
  return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t waiting, cudaEvent_t handle, unsigned) {
  Lock lock(mutex);
  auto event = event_of(handle);
  if (!event) return fail(cudaErrorInvalidResourceHandle);
  StreamPtr other = event->stream;  // as it is recorded now: it may be recorded anew before this wait's turn
  const long long until = event->position;
  push(stream_of(waiting), [other, until] {
    if (other) run(*other, until);
  });
  return cudaSuccess;
}

API cudaError_t cudaEventQuery(cudaEvent_t handle) {
  Lock lock(mutex);
  auto event = event_of(handle);
  if (!event) return fail(cudaErrorInvalidResourceHandle);
  maybe_go_on();
  if (!event->is_done() && ++event->asked > PATIENCE) run(*event->stream, event->position);
  return event->is_done() ? cudaSuccess : fail(cudaErrorNotReady);
}

API cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  Lock lock(mutex);
  auto event = event_of(handle);
  if (!event) return fail(cudaErrorInvalidResourceHandle);
  counters.event_syncs++;
  if (event->stream) run(*event->stream, event->position);
  return cudaSuccess;
}

API cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t began, cudaEvent_t ended) {
  Lock lock(mutex);
  auto first = event_of(began), second = event_of(ended);
  if (!first || !second || !first->stream || !second->stream || !first->has_time || !second->has_time)
    return fail(cudaErrorInvalidResourceHandle);
  if (!first->is_done() || !second->is_done()) return fail(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(second->when - first->when).count();
  return cudaSuccess;
}

// Nothing is ever captured: cudaStreamBeginCapture is not here.
API cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                         cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
  if (id) *id = 0;
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

// --- kernels: none ---------------------------------------------------------------------------------------------------

API cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t stream) { return launch(stream); }
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void*, void**) { return launch(how->stream); }
API cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t stream) { return launch(stream); }

API cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}

API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) {
  *found = {};
  found->maxThreadsPerBlock = 1024, found->numRegs = 32, found->binaryVersion = found->ptxVersion = 90;
  return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* count, const void*, int, size_t, unsigned) {
  return *count = 4, cudaSuccess;
}

// What a compiler makes of `kernel<<<grid, block, shared, stream>>>(...)`, and of the kernels of a library.
struct Launch {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
static thread_local Launch next_launch;

API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
  next_launch = {grid, block, shared, stream};
  return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = next_launch.grid, *block = next_launch.block, *shared = next_launch.shared;
  *static_cast<void**>(stream) = next_launch.stream;
  return cudaSuccess;
}

API void** __cudaRegisterFatBinary(void*) {
  static void* handle;
  return &handle;
}
API void __cudaRegisterFatBinaryEnd(void**) {}
API void __cudaUnregisterFatBinary(void**) {}
API void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
API void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

// --- the driver: what torch asks libcuda.so.1 for, which build.py links to this library ----------------------------------

API CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

API CUresult cuGetErrorString(CUresult, const char** text) {
  *text = "an error of the fake CUDA driver";
  return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (flags) *flags = 0;
  *active = devices[device].has_context;
  return CUDA_SUCCESS;
}

static CUresult no_driver() { return CUDA_ERROR_NOT_SUPPORTED; }

API cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long,
                                                 cudaDriverEntryPointQueryResult* result) {
  const bool known = !strcmp(name, "cuDevicePrimaryCtxGetState");
  *found = known ? reinterpret_cast<void*>(cuDevicePrimaryCtxGetState) : reinterpret_cast<void*>(no_driver);
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
