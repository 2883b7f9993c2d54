package dev.chagres.bindings;

/**
 * Checks the status that a native function returned: nothing happens for success, anything else is thrown as the
 * library's own exception with the library's text and the current device.
 *
 * <p>Call it outside any {@code try} that catches {@code Throwable} from a method handle, or the real error is lost.
 * Success costs one comparison and allocates nothing.
 *
 * <p>Threading: thread-safe; must be called on the thread that made the native call, which is where the text is kept.
 */
public final class Status {

    private static final String[] TE_NAMES = {"TE_SUCCESS", "TE_ERROR", "TE_REFUSED", "TE_MISSING", "TE_NOT_OPEN"};
    private static final String[] OPS_NAMES = {
        "OPS_SUCCESS", "OPS_INVALID_ARGUMENT", "OPS_CUDA_ERROR", "OPS_COMPILE_ERROR", "OPS_NOT_OPEN"
    };
    private static final String[] NCCL_NAMES = {
        "ncclSuccess",
        "ncclUnhandledCudaError",
        "ncclSystemError",
        "ncclInternalError",
        "ncclInvalidArgument",
        "ncclInvalidUsage",
        "ncclRemoteError",
        "ncclInProgress"
    };

    /** What the runtime says without a driver, as with one that is too old. */
    private static final int CUDA_INSUFFICIENT_DRIVER = 35;

    private static final int CUDA_NO_DEVICE = 100;

    /** The first and the last code of calls that do not fit a stream's capture. */
    private static final int CUDA_CAPTURE_UNSUPPORTED = 900;

    private static final int CUDA_CAPTURE_WRONG_THREAD = 908;

    private Status() {}

    /**
     * Checks what a {@code te_} function returned.
     *
     * @throws TransformerEngineException when {@code status} is not {@code TE_SUCCESS}
     */
    public static void te(int status, String function) {
        if (status != 0) {
            throw teFailure(status, function);
        }
    }

    /**
     * Checks what an {@code ops_} function returned.
     *
     * @throws OpsException when {@code status} is not {@code OPS_SUCCESS}
     */
    public static void ops(int status, String function) {
        if (status != 0) {
            throw opsFailure(status, function);
        }
    }

    /**
     * Checks what a function of the CUDA runtime returned.
     *
     * @throws CudaException when {@code status} is not {@code cudaSuccess}; {@code cudaErrorNotReady} counts as failure
     */
    public static void cuda(int status, String function) {
        if (status != 0) {
            throw cudaFailure(status, function, "");
        }
    }

    /**
     * Checks what an NCCL function returned.
     *
     * @throws NcclException when {@code status} is not {@code ncclSuccess}; {@code ncclInProgress}, which only
     *     non-blocking communicators return, counts as failure
     */
    public static void nccl(int status, String function) {
        if (status != 0) {
            throw ncclFailure(status, function, "");
        }
    }

    /**
     * Checks what a cuDNN function returned.
     *
     * @throws CudnnException when {@code status} is not {@code CUDNN_STATUS_SUCCESS}
     */
    public static void cudnn(int status, String function) {
        if (status != 0) {
            throw cudnnFailure(status, function);
        }
    }

    /**
     * Returns what cuDNN has to say of its last call on this thread, which need not have failed: heuristics say why they propose no
     * engine. cuDNN forgets it then.
     */
    public static String cudnnText() {
        return ErrorTexts.cudnnLastError();
    }

    private static TransformerEngineException teFailure(int status, String function) {
        String text = ErrorTexts.text("te_last_error");
        return new TransformerEngineException(failure(
                TransformerEngineException.LIBRARY, function, status, name(TE_NAMES, "TeStatus", status), text));
    }

    private static OpsException opsFailure(int status, String function) {
        String text = ErrorTexts.text("ops_last_error");
        return new OpsException(
                failure(OpsException.LIBRARY, function, status, name(OPS_NAMES, "OpsStatus", status), text));
    }

    private static CudaException cudaFailure(int status, String function, String detail) {
        String name = ErrorTexts.text("cudaGetErrorName", status);
        String text = joined(ErrorTexts.text("cudaGetErrorString", status), detail);
        if (status == CUDA_INSUFFICIENT_DRIVER || status == CUDA_NO_DEVICE) {
            text = joined(text, Driver.probe().description() + "; ./chagres doctor says what is missing");
        }
        if (status >= CUDA_CAPTURE_UNSUPPORTED && status <= CUDA_CAPTURE_WRONG_THREAD) {
            text = joined(
                    text,
                    "a stream is being captured into a graph: make this call before the capture or after the"
                            + " launch, and record events that the captured work waits for inside the capture");
        }
        ErrorTexts.forgetCudaError();
        return new CudaException(
                failure(CudaException.LIBRARY, function, status, orUnknown(name, "cudaError_t"), text));
    }

    /**
     * Returns the exception for a refused allocation, whose text says how much was wanted and held.
     *
     * @param status what the function returned, not {@code cudaSuccess}
     * @param wanted bytes that were asked for
     * @param held bytes that the caller holds already
     */
    public static CudaException outOfMemory(int status, String function, long wanted, long held, String holders) {
        return cudaFailure(status, function, wanted + " bytes were asked for, " + held + " are held already" + holders);
    }

    /**
     * Returns the exception of a failed allocation of NCCL's, with the sizes that explain it.
     *
     * @param status what {@code function} returned
     * @param function such as {@code ncclMemAlloc}
     * @param wanted bytes that were asked for
     * @param free bytes that the device has free, -1 where it does not say
     * @param holders who holds memory, and what would help, behind a colon; empty for nobody
     */
    public static NcclException outOfCollectiveMemory(
            int status, String function, long wanted, long free, String holders) {
        String sizes = wanted + " bytes were asked for" + (free < 0 ? "" : ", the device has " + free + " free");
        String mend = free < 0 || wanted > free ? "; ask for less, or give memory of the device back" + holders : "";
        return ncclFailure(status, function, sizes + mend);
    }

    /** Returns the exception of a failed allocation of page-locked memory of the host, with what was asked for. */
    public static CudaException outOfHostMemory(int status, String function, long wanted) {
        return cudaFailure(
                status,
                function,
                wanted + " bytes of page-locked memory of the host were asked for; the host has too little"
                        + " free, or the process may not lock so much (ulimit -l): keep less of the optimizer's state there, or save through"
                        + " smaller buffers");
    }

    private static NcclException ncclFailure(int status, String function, String detail) {
        String last = joined(ErrorTexts.ncclLastError(), detail);
        String text = joined(ErrorTexts.text("ncclGetErrorString", status), last);
        return new NcclException(
                failure(NcclException.LIBRARY, function, status, name(NCCL_NAMES, "ncclResult_t", status), text));
    }

    private static CudnnException cudnnFailure(int status, String function) {
        String text = ErrorTexts.cudnnLastError();
        String name = orUnknown(ErrorTexts.text("cudnnGetErrorString", status), "cudnnStatus_t");
        return new CudnnException(failure(CudnnException.LIBRARY, function, status, name, text));
    }

    private static NativeFailure failure(String library, String function, int code, String name, String text) {
        return new NativeFailure(library, function, code, name, text, ErrorTexts.currentDevice());
    }

    private static String joined(String first, String second) {
        if (first.isBlank() || second.isBlank()) {
            return first + second;
        }
        return first + "; " + second;
    }

    private static String name(String[] names, String type, int status) {
        return status >= 0 && status < names.length ? names[status] : orUnknown("", type);
    }

    private static String orUnknown(String name, String type) {
        return name.isBlank() ? "unknown " + type : name;
    }
}
