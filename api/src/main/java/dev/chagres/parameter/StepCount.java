package dev.chagres.parameter;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.CaptureException;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.StepWork;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The steps of one model's parameters: their number, the generation that a gradient belongs to, and what is done when a step ends or
 * its gradients are forgotten.
 *
 * <p>Threading: the device's thread.
 */
final class StepCount implements StepWork {
    private final Parameters parameters;
    private final Stream stream;
    private final List<Runnable> atNextStep = new ArrayList<>();
    private final List<Runnable> atForgetting = new ArrayList<>();
    /** The capture that has a step of these parameters already. */
    private @Nullable Capture captured;

    /** The device's flag whether the ending step was skipped; null if steps cannot be skipped, and between steps. */
    private @Nullable Tensor skip;

    private int generation;
    /** Counts how often gradients were written or forgotten. */
    private long gradientChanges;

    private long step;
    /** The number of the latest change of these weights among those of the device. */
    private long changedAt;

    private final StepWork weightChange = new WeightChange();

    /** Counts from 0. */
    StepCount(Parameters parameters, Stream stream) {
        this.parameters = parameters;
        this.stream = stream;
    }

    long step() {
        return step;
    }

    int generation() {
        return generation;
    }

    /** Sets the number of steps taken. */
    void restore(long steps) {
        step = steps;
    }

    long gradientChanges() {
        return gradientChanges;
    }

    /** Records that gradients are written or forgotten now; not for captures. */
    void changeGradients() {
        gradientChanges++;
    }

    /** Begins a generation of gradients, to which none of the present ones belongs. */
    void renew() {
        generation++;
    }

    /** Records that the weights change: backward calls of earlier forward calls would read other weights. */
    void changeWeights() {
        changedAt = Inside.state(stream).countChange();
    }

    /** Records it now and, in a capture, at each launch of the graph. */
    void changeWeightsEachStep() {
        changeWeights();
        Inside.eachStep(stream, weightChange);
    }

    long changedAt() {
        return changedAt;
    }

    @Nullable
    Tensor skip() {
        return skip;
    }

    void next(@Nullable Tensor skipped) {
        CapturedGradients gradients = CapturedGradients.of(parameters); // At a launch it runs before the step.
        if (gradients != null) {
            gradients.step();
        }
        Capture capture = Inside.capture(stream);
        if (capture != null) {
            ensureOnlyStep(capture);
            generation++; // Gradients of a captured pass are written only by launches.
        }
        Inside.eachStep(stream, this);
        skip = skipped;
        try {
            run(atNextStep);
        } finally {
            skip = null;
        }
    }

    /** A graph has at most one step: each launch counts one. */
    private void ensureOnlyStep(Capture capture) {
        if (captured == capture) {
            throw new CaptureException("nextStep: expected at most one step of the parameters in a graph, got"
                    + " another; capture each step separately, or launch one graph twice");
        }
        captured = capture;
    }

    @Override
    public void check() {
        parameters.ensureOpen();
    }

    /** Counts a step, whose gradients are used. */
    @Override
    public void count() {
        step++;
        generation++;
        changeGradients();
    }

    void forgetGradients() {
        CapturedGradients gradients = CapturedGradients.of(parameters);
        if (gradients != null) {
            gradients.forget();
        } else {
            changeGradients();
        }
        generation++;
        run(atForgetting);
    }

    void atNextStep(Runnable action) {
        atNextStep.add(Checks.given("action", action));
    }

    void atForgetting(Runnable action) {
        atForgetting.add(Checks.given("action", action));
    }

    void forget(Runnable action) {
        atNextStep.remove(action);
        atForgetting.remove(action);
    }

    /** The weights are written once a step. */
    private final class WeightChange implements StepWork {
        @Override
        public void check() {
            parameters.ensureOpen();
            parameters.ensureUnshared("launch");
        }

        @Override
        public void count() {
            changeWeights();
        }
    }

    /** Runs actions from last to first, since one may remove itself, and all even if one fails, since the step is made. */
    private static void run(List<Runnable> actions) {
        RuntimeException first = null;
        for (int i = actions.size() - 1; i >= 0; i--) {
            if (i < actions.size()) {
                try {
                    actions.get(i).run();
                } catch (RuntimeException failure) {
                    if (first == null) {
                        first = failure;
                    } else {
                        first.addSuppressed(failure);
                    }
                }
            }
        }
        if (first != null) {
            throw first;
        }
    }
}
