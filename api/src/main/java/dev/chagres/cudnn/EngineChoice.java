package dev.chagres.cudnn;

import dev.chagres.bindings.CudnnException;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cudnn.Cudnn;
import java.util.ArrayList;
import java.util.List;
import java.util.StringJoiner;
import org.jspecify.annotations.Nullable;

/**
 * Asks heuristics for engines, and tries them in their order.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR} and its engine configurations, of {@code cudnn_graph.h}.
 */
final class EngineChoice {
    private static final int MOST_NOTES = 64;

    private final PlanOptions options;
    private final long handle;
    private final BackendDescriptor graph;
    private final List<String> reasons = new ArrayList<>();

    EngineChoice(PlanOptions options, long handle, BackendDescriptor graph) {
        this.options = options;
        this.handle = handle;
        this.graph = graph;
    }

    /**
     * An engine that computes the graph.
     *
     * @param plan its plan, complete
     * @param text of the engine, its knobs and its notes
     */
    record Chosen(BackendDescriptor plan, BackendDescriptor config, long workspaceBytes, String text) {}

    /** Returns why engines were not taken. */
    List<String> reasons() {
        return reasons;
    }

    /** Returns the first engine that the options allow, or null. */
    @Nullable
    Chosen choose() {
        for (HeuristicMode mode : options.heuristics()) {
            Chosen chosen = choose(mode);
            if (chosen != null) {
                return chosen;
            }
        }
        return null;
    }

    private @Nullable Chosen choose(HeuristicMode mode) {
        String what = "heuristics " + mode;
        List<BackendDescriptor> configs = new ArrayList<>();
        try (BackendDescriptor heuristics = BackendDescriptor.make(Cudnn.CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR(), what)) {
            heuristics
                    .descriptors(Cudnn.CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH(), List.of(graph))
                    .integer(Cudnn.CUDNN_ATTR_ENGINEHEUR_MODE(), Cudnn.CUDNN_TYPE_HEUR_MODE(), mode.code())
                    .complete();
            configs.addAll(heuristics.getDescriptors(
                    Cudnn.CUDNN_ATTR_ENGINEHEUR_RESULTS(), Cudnn.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR(), what));
        } catch (CudnnException refused) {
            reasons.add(what + ": " + refused.getMessage());
            return null;
        }
        if (configs.isEmpty()) {
            String said = ForeignText.lines(Status.cudnnText().strip());
            reasons.add(what + ": propose no engine" + (said.isEmpty() ? "" : "; cuDNN says: " + said));
        }
        return first(what, configs);
    }

    /** Returns the first configuration that gives a plan; the others are closed. */
    private @Nullable Chosen first(String what, List<BackendDescriptor> configs) {
        Chosen chosen = null;
        try {
            while (chosen == null && !configs.isEmpty()) {
                chosen = tried(what, configs.getFirst());
                if (chosen == null) {
                    configs.getFirst().close();
                }
                configs.removeFirst();
            }
            return chosen;
        } finally {
            configs.forEach(BackendDescriptor::close);
        }
    }

    private @Nullable Chosen tried(String what, BackendDescriptor config) {
        String engine = what;
        try (BackendDescriptor described = engine(config)) {
            long index = described.getLong(Cudnn.CUDNN_ATTR_ENGINE_GLOBAL_INDEX());
            engine = "engine " + index + " of " + what;
            List<Integer> notes = described.getIntegers(
                    Cudnn.CUDNN_ATTR_ENGINE_NUMERICAL_NOTE(), Cudnn.CUDNN_TYPE_NUMERICAL_NOTE(), MOST_NOTES);
            for (NumericalNote refused : options.refusedNotes()) {
                if (notes.contains(refused.code())) {
                    reasons.add(engine + ": has the note " + refused);
                    return null;
                }
            }
            return planned(engine, config, text(engine, config, described, notes));
        } catch (CudnnException refused) {
            reasons.add(engine + ": " + refused.getMessage());
            return null;
        }
    }

    private static BackendDescriptor engine(BackendDescriptor config) {
        return config.getDescriptors(
                        Cudnn.CUDNN_ATTR_ENGINECFG_ENGINE(), Cudnn.CUDNN_BACKEND_ENGINE_DESCRIPTOR(), "engine")
                .getFirst();
    }

    private @Nullable Chosen planned(String engine, BackendDescriptor config, String text) {
        BackendDescriptor plan =
                BackendDescriptor.make(Cudnn.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR(), "plan of " + engine);
        try {
            plan.longs(Cudnn.CUDNN_ATTR_EXECUTION_PLAN_HANDLE(), Cudnn.CUDNN_TYPE_HANDLE(), handle)
                    .descriptors(Cudnn.CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG(), List.of(config))
                    .complete();
            long bytes = plan.getLong(Cudnn.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE());
            if (bytes <= options.workspaceLimit()) {
                return new Chosen(plan, config, bytes, text);
            }
            reasons.add(engine + ": wants " + bytes + " bytes of workspace, more than " + options.workspaceLimit());
        } catch (RuntimeException failure) {
            plan.close();
            throw failure;
        }
        plan.close();
        return null;
    }

    private static String text(
            String engine, BackendDescriptor config, BackendDescriptor described, List<Integer> notes) {
        StringJoiner knobs = new StringJoiner(", ");
        for (BackendDescriptor knob : knobs(config)) {
            try (knob) {
                knobs.add("knob "
                        + knob.getInteger(Cudnn.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE(), Cudnn.CUDNN_TYPE_KNOB_TYPE())
                        + " = " + knob.getLong(Cudnn.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE()));
            }
        }
        StringJoiner numerical = new StringJoiner(", ");
        notes.forEach(note -> numerical.add(NumericalNote.nameOf(note)));
        StringJoiner behavior = new StringJoiner(", ");
        described
                .getIntegers(Cudnn.CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE(), Cudnn.CUDNN_TYPE_BEHAVIOR_NOTE(), MOST_NOTES)
                .forEach(note -> behavior.add(BehaviorNote.nameOf(note)));
        return engine + "\nknobs: " + orNone(knobs) + "\nnumerical notes: " + orNone(numerical) + "\nbehavior notes: "
                + orNone(behavior);
    }

    private static String orNone(StringJoiner joined) {
        return joined.length() == 0 ? "none" : joined.toString();
    }

    private static List<BackendDescriptor> knobs(BackendDescriptor config) {
        return config.getDescriptors(
                Cudnn.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES(), Cudnn.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR(), "knob");
    }
}
