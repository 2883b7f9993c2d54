package dev.chagres.pass;

import dev.chagres.Stream;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.Output;
import java.util.ArrayList;
import java.util.List;

/**
 * Which parameters' gradients the backward calls of one pass have written, and whether a call has failed, so that they are incomplete.
 *
 * <p>Threading: the device's thread.
 */
final class PassGradients {
    private final Stream stream;
    /** Parameters whose gradients were written in this micro-batch. */
    private final List<Parameters> written = new ArrayList<>();
    /** Parameters whose gradients were written in any micro-batch, since the current step may have earlier ones. */
    private final List<Parameters> everWritten = new ArrayList<>();

    private boolean failed;
    private boolean failedForward;
    /** Whether the latest backward call was refused: neither it nor another one has been accepted since. */
    private boolean refused;
    /** The number of changes on the device at the forward call of the current backward call. */
    private long forwardAt = Long.MAX_VALUE;

    PassGradients(Stream stream) {
        this.stream = stream;
    }

    /** Records that the gradient of {@code parameter} is written now, and returns how. */
    Output next(Parameter parameter) {
        Parameters owner = Checks.given("parameter", parameter).owner();
        if (!written.contains(owner)) {
            written.add(owner);
            if (!everWritten.contains(owner)) {
                everWritten.removeIf(one -> !one.isOpen());
                everWritten.add(owner);
            }
            Capture capture = Inside.capture(stream);
            if (capture != null) {
                capture.trust(owner, owner::ensureOpen);
            }
        }
        ensureUnchanged(parameter, owner);
        return parameter.nextGradient();
    }

    /** Checks that {@code parameter}, which backward reads to recompute what forward has not saved, is as forward has read it. */
    void ensureUnchanged(Parameter parameter) {
        ensureUnchanged(parameter, parameter.owner());
    }

    private void ensureUnchanged(Parameter parameter, Parameters owner) {
        if (owner.changedAt(parameter) > forwardAt) {
            throw new IllegalStateException("backward: expected weights as forward has read them, got "
                    + parameter.name()
                    + " of parameters that have changed since: an optimizer's step, changed(), a"
                    + " loaded state or a write by set, copyFrom or zero came between; call backward before it, or pass.begin() and"
                    + " forward again");
        }
    }

    void fail() {
        failed = true;
    }

    /** Records that a backward call looks for the tensors of its forward call. */
    void backwardAsked() {
        refused = true;
    }

    /** Sets what was saved by the forward call of the current backward call. */
    void backwardOf(SavedContext forward) {
        forwardAt = forward.changes;
    }

    /** Records that a backward call was accepted: it has found its tensors, and its arguments fit. */
    void backwardAccepted() {
        refused = false;
    }

    /** Records that a forward call has failed: amaxes that it has recorded are discarded. */
    void failForward() {
        failedForward = true;
    }

    /** Checks, for a layer's call, that no call has failed. */
    void ensureWhole(Object caller) {
        if (failed) {
            throw new IllegalStateException(
                    Layer.nameOf(caller) + ": a backward call of this pass has failed, so its gradients are"
                            + " incomplete; call pass.begin(), which discards them, and repeat the step");
        }
    }

    /** Returns whether gradients of the micro-batch are missing. */
    boolean isIncomplete() {
        // If a call was refused and not repeated, the written gradients are only a part of the micro-batch's.
        return failed || (refused && !written.isEmpty());
    }

    /**
     * Ends the micro-batch, discards incomplete gradients, and returns whether a call has failed, so that no gradient of the micro-batch
     * counts.
     */
    boolean end() {
        boolean incomplete = isIncomplete();
        boolean none = incomplete || (failedForward && written.isEmpty());
        if (incomplete) {
            everWritten.removeIf(one -> !one.isOpen());
            everWritten.forEach(Parameters::forgetGradients); // The step is repeated from its first micro-batch on.
        }
        failed = false;
        failedForward = false;
        refused = false;
        forwardAt = Long.MAX_VALUE;
        written.clear();
        return none;
    }
}
