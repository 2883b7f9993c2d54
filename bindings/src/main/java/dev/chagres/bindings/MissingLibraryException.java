package dev.chagres.bindings;

import java.util.List;

/**
 * A native library was not found, could not be opened, or has a version that this release was not made for.
 *
 * <p>The message has up to four parts, a line each or more:
 *
 * <pre>{@code
 * cuDNN: NOT_FOUND: libcudnn.so.9, wanted 9.19 <= version < 10
 *   tried -Dchagres.cudnn.path: not set
 *   tried Python /opt/venv/lib/python3.12/site-packages/nvidia/cudnn/lib: no such folder
 *   the loader said: ...
 *   to mend it: pip install nvidia-cudnn-cu13==9.19.0.56
 * }</pre>
 *
 * <p>Threading: immutable.
 */
public final class MissingLibraryException extends NativeException {

    private static final long serialVersionUID = 1;

    /** Why a library cannot be used. */
    public enum Reason {
        /** No place that was searched has the library's files. */
        NOT_FOUND,
        /** The file is there and the dynamic loader refuses it. */
        NOT_LOADABLE,
        /** The library opens and its version lies outside the wanted window. */
        WRONG_VERSION,
        /** The machine has no usable NVIDIA driver. */
        NO_DRIVER
    }

    /** One place that was searched, and what was seen there. */
    public record Attempt(String place, String outcome) implements java.io.Serializable {
        @Override
        public String toString() {
            return place + ": " + outcome;
        }
    }

    private final Reason reason;
    private final String detail;

    @SuppressWarnings("serial") // List.copyOf returns a serializable list
    private final List<Attempt> attempts;

    private final String remedy;

    MissingLibraryException(String library, Finding finding) {
        super(failure(library, finding), message(library, finding), null);
        reason = finding.reason();
        detail = finding.detail();
        attempts = finding.attempts();
        remedy = finding.remedy();
    }

    private MissingLibraryException(MissingLibraryException first) {
        super(first.failure(), String.valueOf(first.getMessage()), first);
        reason = first.reason;
        detail = first.detail;
        attempts = first.attempts;
        remedy = first.remedy;
    }

    /**
     * Why a library cannot be used.
     *
     * @param detail the file or version that was wanted, and what came instead
     * @param loaderText the dynamic loader's words, "" when it was not asked
     * @param remedy the line that mends it
     */
    record Finding(Reason reason, String detail, List<Attempt> attempts, String loaderText, String remedy) {
        Finding {
            attempts = List.copyOf(attempts);
        }
    }

    /** The same failure, with another line that mends it. */
    MissingLibraryException withRemedy(String other) {
        return new MissingLibraryException(library(), new Finding(reason, detail, attempts, libraryText(), other));
    }

    /**
     * Of a file that the dynamic loader refused.
     *
     * @param detail the file that was wanted
     */
    static MissingLibraryException notLoadable(String library, String detail, String loaderText, LoadFault fault) {
        String cause = fault.cause().isEmpty() ? "" : ": " + fault.cause();
        return new MissingLibraryException(
                library, new Finding(Reason.NOT_LOADABLE, detail + cause, List.of(), loaderText, fault.remedy()));
    }

    private static NativeFailure failure(String library, Finding finding) {
        Reason reason = finding.reason();
        return new NativeFailure(
                library, "dlopen", reason.ordinal(), reason.name(), finding.loaderText(), NativeFailure.UNKNOWN_DEVICE);
    }

    private static String message(String library, Finding finding) {
        StringBuilder text = new StringBuilder(library)
                .append(": ")
                .append(finding.reason())
                .append(": ")
                .append(finding.detail());
        finding.attempts().forEach(attempt -> text.append("\n  tried ").append(attempt));
        if (!finding.loaderText().isBlank()) {
            text.append("\n  the loader said: ").append(finding.loaderText().strip());
        }
        return ForeignText.lines(
                text.append("\n  to mend it: ").append(finding.remedy()).toString());
    }

    /** Why the library cannot be used. */
    public Reason reason() {
        return reason;
    }

    /** The file or version that was wanted, and what came instead. */
    public String detail() {
        return detail;
    }

    /** Every place that was searched, in the order of the search, with what was seen there. */
    public List<Attempt> attempts() {
        return attempts;
    }

    /** The line that mends it: a command or a property. */
    public String remedy() {
        return remedy;
    }

    @Override
    MissingLibraryException again() {
        return new MissingLibraryException(this);
    }
}
