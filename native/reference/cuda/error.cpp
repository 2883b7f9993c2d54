/* The CUDA runtime's error codes: names, texts, the last error of each thread. */
#include <algorithm>
#include <iterator>
#include <new>

#include "cuda/capture.h"

namespace chagres::reference {

namespace {

struct ErrorName {
  int code;
  const char *name;
};

/* cudaError of CUDA 13.0, by code. */
constexpr ErrorName kNames[] = {
    {0, "cudaSuccess"},
    {1, "cudaErrorInvalidValue"},
    {2, "cudaErrorMemoryAllocation"},
    {3, "cudaErrorInitializationError"},
    {4, "cudaErrorCudartUnloading"},
    {5, "cudaErrorProfilerDisabled"},
    {6, "cudaErrorProfilerNotInitialized"},
    {7, "cudaErrorProfilerAlreadyStarted"},
    {8, "cudaErrorProfilerAlreadyStopped"},
    {9, "cudaErrorInvalidConfiguration"},
    {12, "cudaErrorInvalidPitchValue"},
    {13, "cudaErrorInvalidSymbol"},
    {16, "cudaErrorInvalidHostPointer"},
    {17, "cudaErrorInvalidDevicePointer"},
    {18, "cudaErrorInvalidTexture"},
    {19, "cudaErrorInvalidTextureBinding"},
    {20, "cudaErrorInvalidChannelDescriptor"},
    {21, "cudaErrorInvalidMemcpyDirection"},
    {22, "cudaErrorAddressOfConstant"},
    {23, "cudaErrorTextureFetchFailed"},
    {24, "cudaErrorTextureNotBound"},
    {25, "cudaErrorSynchronizationError"},
    {26, "cudaErrorInvalidFilterSetting"},
    {27, "cudaErrorInvalidNormSetting"},
    {28, "cudaErrorMixedDeviceExecution"},
    {31, "cudaErrorNotYetImplemented"},
    {32, "cudaErrorMemoryValueTooLarge"},
    {34, "cudaErrorStubLibrary"},
    {35, "cudaErrorInsufficientDriver"},
    {36, "cudaErrorCallRequiresNewerDriver"},
    {37, "cudaErrorInvalidSurface"},
    {43, "cudaErrorDuplicateVariableName"},
    {44, "cudaErrorDuplicateTextureName"},
    {45, "cudaErrorDuplicateSurfaceName"},
    {46, "cudaErrorDevicesUnavailable"},
    {49, "cudaErrorIncompatibleDriverContext"},
    {52, "cudaErrorMissingConfiguration"},
    {53, "cudaErrorPriorLaunchFailure"},
    {65, "cudaErrorLaunchMaxDepthExceeded"},
    {66, "cudaErrorLaunchFileScopedTex"},
    {67, "cudaErrorLaunchFileScopedSurf"},
    {68, "cudaErrorSyncDepthExceeded"},
    {69, "cudaErrorLaunchPendingCountExceeded"},
    {98, "cudaErrorInvalidDeviceFunction"},
    {100, "cudaErrorNoDevice"},
    {101, "cudaErrorInvalidDevice"},
    {102, "cudaErrorDeviceNotLicensed"},
    {103, "cudaErrorSoftwareValidityNotEstablished"},
    {127, "cudaErrorStartupFailure"},
    {200, "cudaErrorInvalidKernelImage"},
    {201, "cudaErrorDeviceUninitialized"},
    {205, "cudaErrorMapBufferObjectFailed"},
    {206, "cudaErrorUnmapBufferObjectFailed"},
    {207, "cudaErrorArrayIsMapped"},
    {208, "cudaErrorAlreadyMapped"},
    {209, "cudaErrorNoKernelImageForDevice"},
    {210, "cudaErrorAlreadyAcquired"},
    {211, "cudaErrorNotMapped"},
    {212, "cudaErrorNotMappedAsArray"},
    {213, "cudaErrorNotMappedAsPointer"},
    {214, "cudaErrorECCUncorrectable"},
    {215, "cudaErrorUnsupportedLimit"},
    {216, "cudaErrorDeviceAlreadyInUse"},
    {217, "cudaErrorPeerAccessUnsupported"},
    {218, "cudaErrorInvalidPtx"},
    {219, "cudaErrorInvalidGraphicsContext"},
    {220, "cudaErrorNvlinkUncorrectable"},
    {221, "cudaErrorJitCompilerNotFound"},
    {222, "cudaErrorUnsupportedPtxVersion"},
    {223, "cudaErrorJitCompilationDisabled"},
    {224, "cudaErrorUnsupportedExecAffinity"},
    {225, "cudaErrorUnsupportedDevSideSync"},
    {226, "cudaErrorContained"},
    {300, "cudaErrorInvalidSource"},
    {301, "cudaErrorFileNotFound"},
    {302, "cudaErrorSharedObjectSymbolNotFound"},
    {303, "cudaErrorSharedObjectInitFailed"},
    {304, "cudaErrorOperatingSystem"},
    {400, "cudaErrorInvalidResourceHandle"},
    {401, "cudaErrorIllegalState"},
    {402, "cudaErrorLossyQuery"},
    {500, "cudaErrorSymbolNotFound"},
    {600, "cudaErrorNotReady"},
    {700, "cudaErrorIllegalAddress"},
    {701, "cudaErrorLaunchOutOfResources"},
    {702, "cudaErrorLaunchTimeout"},
    {703, "cudaErrorLaunchIncompatibleTexturing"},
    {704, "cudaErrorPeerAccessAlreadyEnabled"},
    {705, "cudaErrorPeerAccessNotEnabled"},
    {708, "cudaErrorSetOnActiveProcess"},
    {709, "cudaErrorContextIsDestroyed"},
    {710, "cudaErrorAssert"},
    {711, "cudaErrorTooManyPeers"},
    {712, "cudaErrorHostMemoryAlreadyRegistered"},
    {713, "cudaErrorHostMemoryNotRegistered"},
    {714, "cudaErrorHardwareStackError"},
    {715, "cudaErrorIllegalInstruction"},
    {716, "cudaErrorMisalignedAddress"},
    {717, "cudaErrorInvalidAddressSpace"},
    {718, "cudaErrorInvalidPc"},
    {719, "cudaErrorLaunchFailure"},
    {720, "cudaErrorCooperativeLaunchTooLarge"},
    {721, "cudaErrorTensorMemoryLeak"},
    {800, "cudaErrorNotPermitted"},
    {801, "cudaErrorNotSupported"},
    {802, "cudaErrorSystemNotReady"},
    {803, "cudaErrorSystemDriverMismatch"},
    {804, "cudaErrorCompatNotSupportedOnDevice"},
    {805, "cudaErrorMpsConnectionFailed"},
    {806, "cudaErrorMpsRpcFailure"},
    {807, "cudaErrorMpsServerNotReady"},
    {808, "cudaErrorMpsMaxClientsReached"},
    {809, "cudaErrorMpsMaxConnectionsReached"},
    {810, "cudaErrorMpsClientTerminated"},
    {811, "cudaErrorCdpNotSupported"},
    {812, "cudaErrorCdpVersionMismatch"},
    {900, "cudaErrorStreamCaptureUnsupported"},
    {901, "cudaErrorStreamCaptureInvalidated"},
    {902, "cudaErrorStreamCaptureMerge"},
    {903, "cudaErrorStreamCaptureUnmatched"},
    {904, "cudaErrorStreamCaptureUnjoined"},
    {905, "cudaErrorStreamCaptureIsolation"},
    {906, "cudaErrorStreamCaptureImplicit"},
    {907, "cudaErrorCapturedEvent"},
    {908, "cudaErrorStreamCaptureWrongThread"},
    {909, "cudaErrorTimeout"},
    {910, "cudaErrorGraphExecUpdateFailure"},
    {911, "cudaErrorExternalDevice"},
    {912, "cudaErrorInvalidClusterSize"},
    {913, "cudaErrorFunctionNotLoaded"},
    {914, "cudaErrorInvalidResourceType"},
    {915, "cudaErrorInvalidResourceConfiguration"},
    {999, "cudaErrorUnknown"},
    {10000, "cudaErrorApiFailureBase"},
};

struct ErrorText {
  int code;
  const char *text;
};

/* The codes that the reference itself returns. */
constexpr ErrorText kTexts[] = {
    {kCudaSuccess, "no error"},
    {kCudaInvalidValue, "an argument is invalid: null or unknown pointer, size beyond the allocation, or value out of range"},
    {kCudaMemoryAllocation, "out of device memory"},
    {kCudaInvalidPitchValue, "the pitch is smaller than the width"},
    {kCudaInvalidMemcpyDirection, "the copy kind is none of cudaMemcpyKind"},
    {kCudaInvalidDevice, "no device has this number"},
    {kCudaInvalidResourceHandle, "the stream or event was destroyed, never created, or lacks what the call needs"},
    {kCudaIllegalState, "the stream captures already, or none captures"},
    {kCudaPeerAccessAlreadyEnabled, "access to this peer device is enabled already"},
    {kCudaPeerAccessNotEnabled, "access to this peer device was not enabled"},
    {kCudaHostMemoryAlreadyRegistered, "the host memory is registered already"},
    {kCudaHostMemoryNotRegistered, "the host memory is not registered"},
    {kCudaStreamCaptureUnsupported, "the call waits, allocates or copies at once, which no stream that captures can record"},
    {kCudaStreamCaptureInvalidated, "an earlier call has made the capture invalid"},
    {kCudaStreamCaptureMerge, "the call would make one capture of two"},
    {kCudaStreamCaptureUnmatched, "the capture was begun on another stream"},
    {kCudaStreamCaptureUnjoined, "the capture has work on another stream that the first stream does not wait for"},
    {kCudaStreamCaptureIsolation, "the call would make the capture wait for work outside of it"},
    {kCudaStreamCaptureImplicit, "the legacy stream would have to wait for a stream that captures"},
    {kCudaCapturedEvent, "a capture has recorded the event last"},
    {kCudaStreamCaptureWrongThread, "another thread has begun the capture"},
    {kCudaNotSupported, "the CPU reference does not provide this function; reference_last_unsupported() names it"},
};

thread_local int last_error = kCudaSuccess;
thread_local const char *last_unsupported = "";
thread_local std::string launch_failure;

const char *error_name(int code) {
  const auto *found = std::lower_bound(std::begin(kNames), std::end(kNames), code,
                                       [](const ErrorName &entry, int wanted) { return entry.code < wanted; });
  return found != std::end(kNames) && found->code == code ? found->name : nullptr;
}

}  // namespace

cudaError_t cuda_status(int code) {
  if (code != kCudaSuccess) last_error = code;
  return code;
}

cudaError_t cuda_caught() noexcept {
  try {
    throw;
  } catch (const CudaFailure &failure) {
    return cuda_status(failure.code());
  } catch (const std::bad_alloc &) {
    return cuda_status(kCudaMemoryAllocation);
  } catch (...) {
    return cuda_status(kCudaUnknown);
  }
}

const char *cuda_error_text(int code) {
  if (code == kCudaLaunchFailure && !launch_failure.empty()) return launch_failure.c_str();
  for (const ErrorText &entry : kTexts) {
    if (entry.code == code) return entry.text;
  }
  const char *name = error_name(code);
  return name == nullptr ? "unrecognized error code" : name;
}

void keep_launch_failure(const char *refused) { launch_failure = text("a call of the graph was refused: ", refused); }

void keep_unsupported(const char *function) { last_unsupported = function; }

const char *last_unsupported_function() { return last_unsupported; }

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT const char *cudaGetErrorName(cudaError_t error) {
  const char *name = error_name(error);
  return name == nullptr ? "unrecognized error code" : name;
}

CHAGRES_EXPORT const char *cudaGetErrorString(cudaError_t error) { return cuda_error_text(error); }

CHAGRES_EXPORT cudaError_t cudaGetLastError(void) try {
  const int code = last_error;
  last_error = kCudaSuccess;
  return code;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaPeekAtLastError(void) try {
  return last_error;
} CHAGRES_CUDA_CATCH

/* Name of this thread's last called function that the reference does not provide, "" when there was none. */
CHAGRES_EXPORT const char *reference_last_unsupported(void) { return last_unsupported_function(); }
