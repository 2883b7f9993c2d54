package dev.chagres.pass;

import dev.chagres.Device;
import dev.chagres.Stream;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.recipe.AmaxRecording;
import dev.chagres.recipe.PassRecord;
import dev.chagres.recipe.Quantizers;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The recipe by which one pass computes its products, and the quantizers for which it has recorded amaxes.
 *
 * <p>Threading: the device's thread.
 */
final class PassRecipe {
    private final Stream stream;
    private final boolean training;
    /** Since the pass was made. */
    private final List<PassRecord> records = new ArrayList<>();

    private @Nullable Quantizers quantizers;
    private boolean calibrating;

    /** {@code training}: else the pass evaluates, and records nothing. */
    PassRecipe(Stream stream, boolean training) {
        this.stream = stream;
        this.training = training;
    }

    /** Computes by {@code given} from here on. */
    void autocast(Quantizers given) {
        quantizers = here(given);
        calibrating = false;
    }

    /** Records for {@code given} from here on. */
    void calibrate(Quantizers given) {
        if (!training) {
            throw new IllegalStateException(
                    "calibrate: expected a training pass, for evaluation records nothing; call it on"
                            + " one from Pass.training, then parameters.nextStep()");
        }
        quantizers = here(given);
        calibrating = true;
    }

    void restore(@Nullable Quantizers before, boolean calibratingBefore) {
        quantizers = before;
        calibrating = calibratingBefore;
    }

    @Nullable
    Quantizers quantizers() {
        return quantizers;
    }

    boolean isCalibrating() {
        return calibrating;
    }

    /** Returns whether casts record, which they then do. */
    AmaxRecording recording() {
        if (!training) {
            return AmaxRecording.OFF;
        }
        records.forEach(PassRecord::mark);
        return AmaxRecording.ON;
    }

    /** Discards what a failed micro-batch has recorded. */
    void takeBack() {
        for (int i = 0; training && i < records.size(); i++) {
            records.get(i).takeBack();
        }
    }

    /**
     * Begins a micro-batch. In a capture, weights are cast anew at their next use, as the graph does at each launch, which requires the
     * quantizers to be open.
     */
    void begin(@Nullable Capture capture) {
        for (int i = 0; i < records.size(); i++) {
            if (training) {
                records.get(i).begin();
            }
            if (capture != null) {
                records.get(i).quantizers().forgetWeights();
            }
        }
        if (capture != null) {
            trust(capture, quantizers);
        }
    }

    private static void trust(Capture capture, @Nullable Quantizers used) {
        if (used != null) {
            capture.trust(used, () -> {
                if (!used.isOpen()) {
                    throw new IllegalStateException(
                            "launch: the quantizers of the pass were closed since the capture, by themselves or with"
                                    + " their parameters; launch the graph before that, or capture again with others");
                }
            });
        }
    }

    private Quantizers here(Quantizers given) {
        Stream theirs = Checks.given("quantizers", given).parameters().scope().stream();
        Device here = stream.device();
        Device other = theirs.device();
        if (other != here) {
            throw new IllegalArgumentException("quantizers: expected those of " + here + ", got those of " + other
                    + (other.index() == here.index() ? ", opened another time" : ""));
        }
        if (theirs != stream) {
            throw new IllegalArgumentException(
                    "quantizers: expected those of parameters on the pass's own stream, for weights"
                            + " are cast once for all passes, in that stream's order; make the pass on parameters.scope().stream()");
        }
        given.ensureOpen();
        records.removeIf(one -> !one.quantizers().isOpen());
        if (!isRecorded(given)) {
            PassRecord made = new PassRecord(given);
            records.add(made);
            if (training) {
                made.begin();
            }
        }
        Capture capture = Inside.capture(stream);
        if (capture != null) {
            trust(capture, given);
        }
        return given;
    }

    private boolean isRecorded(Quantizers one) {
        for (int i = 0; i < records.size(); i++) {
            if (records.get(i).quantizers() == one) {
                return true;
            }
        }
        return false;
    }
}
