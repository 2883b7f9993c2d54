package dev.chagres.cudnn;

import java.util.List;

/**
 * No engine of cuDNN computes a graph within the options of a plan. The text has the reason of each engine and heuristic that was asked.
 *
 * <p>Threading: immutable.
 */
public final class UnsupportedGraphException extends RuntimeException {
    private static final long serialVersionUID = 1;

    private final transient List<String> reasons;

    UnsupportedGraphException(String message, List<String> reasons) {
        super(message);
        this.reasons = List.copyOf(reasons);
    }

    /** Returns why each engine or heuristic was not taken, in the order in which they were asked. */
    public List<String> reasons() {
        return reasons;
    }
}
