package dev.chagres.parameter;

import dev.chagres.Stream;
import dev.chagres.internal.Inside;
import dev.chagres.internal.memory.Capture;
import dev.chagres.internal.memory.StepWork;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Which gradients of one model a graph overwrites, which it adds to or reads, and which it leaves written. A launch is refused unless all
 * gradients are as at the capture; a successful one records what it has written. The capture itself has run nothing: once it ends, the
 * gradients are as before.
 *
 * <p>Threading: the device's thread.
 */
final class CapturedGradients implements StepWork {
    private final Parameters parameters;
    private final Capture capture;
    /** Gradients that were written before the capture. */
    private final List<Parameter> before = new ArrayList<>();

    private final boolean summedBefore;
    private final Set<Parameter> used = new HashSet<>();
    /** Gradients that must not be written before a launch. */
    private final List<Parameter> first = new ArrayList<>();
    /** Gradients that must be written before a launch. */
    private final List<Parameter> added = new ArrayList<>();
    /** Gradients that a launch leaves written, and those that it forgets. */
    private final List<Parameter> left = new ArrayList<>();

    private final List<Parameter> forgotten = new ArrayList<>();
    /** Counts how often the graph writes or forgets gradients. */
    private long changes;

    private boolean backward;
    private boolean stepped;

    private CapturedGradients(Parameters parameters, Capture capture) {
        this.parameters = parameters;
        this.capture = capture;
        for (Parameter parameter : parameters.all()) {
            if (parameter.hasGradient()) {
                before.add(parameter);
            }
        }
        summedBefore = parameters.partials.isSummed(parameters.generation());
    }

    /** Returns the record of {@code parameters} in the current capture; null without one. */
    static @Nullable CapturedGradients of(Parameters parameters) {
        Stream stream = parameters.scope().stream();
        Capture capture = Inside.state(stream).capture();
        if (capture == null) {
            return null;
        }
        CapturedGradients present = parameters.captured;
        if (present == null || present.capture != capture) {
            present = new CapturedGradients(parameters, capture);
            parameters.captured = present;
            capture.add(present, stream.handle());
            capture.onRecorded(present::finish);
            capture.onFailure(present::fail);
        }
        return present;
    }

    /** Returns how often the present capture has written or forgotten gradients of {@code parameters} so far. */
    static long changes(Parameters parameters) {
        CapturedGradients present = parameters.captured;
        Capture capture = Inside.state(parameters.scope().stream()).capture();
        return present == null || present.capture != capture ? 0 : present.changes;
    }

    /** Records that a backward call is about to write a gradient. */
    void write(Parameter parameter) {
        backward = true;
        changes++;
        read(parameter);
    }

    /** Records that a norm or an optimizer is about to read a gradient. */
    void read(Parameter parameter) {
        if (!stepped && used.add(parameter)) {
            (parameter.hasGradient() ? added : first).add(parameter);
        }
    }

    /** Records that all gradients are forgotten, now and not at launches: a launch is refused if it would forget some. */
    void forget() {
        changes++;
        before.clear();
        for (Parameter parameter : parameters.all()) {
            if (!stepped && used.add(parameter)) {
                first.add(parameter);
            }
        }
    }

    /** Records that a step has used the gradients. */
    void step() {
        stepped = true;
    }

    private void finish() {
        for (Parameter parameter : parameters.all()) {
            if (parameter.hasGradient()) {
                if (stepped || used.contains(parameter)) {
                    left.add(parameter);
                }
            } else if (!stepped && used.contains(parameter)) {
                forgotten.add(parameter);
            }
        }
        restore();
    }

    private void fail() {
        if (backward) {
            parameters.captured = null;
            parameters.forgetGradients();
        } else {
            restore();
        }
    }

    private void restore() {
        parameters.captured = null;
        int generation = parameters.renewGradients();
        before.forEach(parameter -> parameter.written(generation));
        if (summedBefore) {
            parameters.partials.summed(generation);
        }
    }

    @Override
    public void check() {
        parameters.ensureOpen();
        for (int i = 0; i < first.size(); i++) {
            if (first.get(i).hasGradient()) {
                throw new IllegalStateException("launch: expected no gradient of "
                        + first.get(i).name()
                        + " in this step, as at the capture, got one that the graph would overwrite;"
                        + " take the optimizer's step or call forgetGradients() before the launch; a graph that adds is"
                        + " captured after the step's first backward call");
            }
        }
        for (int i = 0; i < added.size(); i++) {
            if (!added.get(i).hasGradient()) {
                throw new IllegalStateException("launch: expected a gradient of "
                        + added.get(i).name()
                        + " in this step, as at the capture, got none, so that the graph would use"
                        + " that of an earlier step; call backward, or launch a graph that does, before the launch");
            }
        }
        ensureWholeStep();
    }

    /** For gradients that are summed over ranks, the host knows their state only if whole steps are captured. */
    private void ensureWholeStep() {
        boolean whole = stepped && added.isEmpty() && left.isEmpty();
        if (!whole && !used.isEmpty() && parameters.access().isOverRanks()) {
            throw new IllegalStateException(
                    "launch: expected a whole step in the graph, since its gradients are summed over"
                            + " ranks, got a part of one; capture all from the step's first backward call to the optimizer's step");
        }
    }

    /** Called at each launch, before a step of the same graph is counted. */
    @Override
    public void count() {
        if (backward) {
            parameters.changeGradients();
        }
        int generation = parameters.generation() + (stepped ? 1 : 0);
        for (int i = 0; i < left.size(); i++) {
            left.get(i).written(generation);
        }
        forgotten.forEach(Parameter::forgetGradient);
    }
}
