package dev.chagres.cudnn;

import dev.chagres.bindings.CudnnException;
import dev.chagres.bindings.ForeignText;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.cudnn.Cudnn;
import dev.chagres.internal.memory.Closing;
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
    /** Why engines were not taken. */
    final List<String> reasons = new ArrayList<>();

    EngineChoice(PlanOptions options, long handle, BackendDescriptor graph) {
        this.options = options;
        this.handle = handle;
        this.graph = graph;
    }

    /**
     * An engine that computes the graph.
     *
     * @param descriptors its configuration and what that was made of, and then its plan
     * @param choice its number and knobs
     * @param text of the engine, its knobs and its notes
     */
    record Chosen(List<BackendDescriptor> descriptors, PlanChoices.Choice choice, long workspaceBytes, String text)
            implements AutoCloseable {
        long plan() {
            return descriptors.getLast().handle();
        }

        @Override
        public void close() {
            Closing.newestFirst(new ArrayList<>(descriptors));
        }
    }

    /** Adds why an engine was not taken. */
    void refuse(Chosen chosen, CudnnException failure) {
        reasons.add(chosen.choice() + ": " + failure.getMessage());
    }

    /** Returns the first engines that the options allow, {@code most} at most; each is another. */
    List<Chosen> choose(int most) {
        List<Chosen> all = new ArrayList<>();
        try {
            for (HeuristicMode mode : options.heuristics()) {
                if (all.size() < most) {
                    choose(mode, all, most);
                }
            }
            return all;
        } catch (RuntimeException | Error failure) {
            Closing.newestFirst(new ArrayList<>(all));
            throw failure;
        }
    }

    private void choose(HeuristicMode mode, List<Chosen> all, int most) {
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
            return;
        }
        if (configs.isEmpty()) {
            String said = ForeignText.lines(Status.cudnnText().strip());
            reasons.add(what + ": propose no engine" + (said.isEmpty() ? "" : "; cuDNN says: " + said));
        }
        take(what, configs, all, most);
    }

    /** Adds the configurations that give a plan, and closes the others. */
    private void take(String what, List<BackendDescriptor> configs, List<Chosen> all, int most) {
        try {
            while (all.size() < most && !configs.isEmpty()) {
                Chosen chosen = tried(what, List.of(configs.getFirst()));
                BackendDescriptor config = configs.removeFirst();
                if (chosen == null) {
                    config.close();
                } else if (all.stream().anyMatch(other -> other.choice().equals(chosen.choice()))) {
                    chosen.close();
                } else {
                    all.add(chosen);
                }
            }
        } finally {
            configs.forEach(BackendDescriptor::close);
        }
    }

    /** Returns the engine of a choice with its knobs, or null where cuDNN or the options refuse it. */
    @Nullable
    Chosen again(PlanChoices.Choice choice) {
        List<BackendDescriptor> made = new ArrayList<>();
        Chosen chosen = null;
        try {
            BackendDescriptor engine = kept(made, Cudnn.CUDNN_BACKEND_ENGINE_DESCRIPTOR(), "engine that was kept");
            engine.descriptors(Cudnn.CUDNN_ATTR_ENGINE_OPERATION_GRAPH(), List.of(graph))
                    .longs(Cudnn.CUDNN_ATTR_ENGINE_GLOBAL_INDEX(), Cudnn.CUDNN_TYPE_INT64(), choice.engine())
                    .complete();
            List<BackendDescriptor> knobs = new ArrayList<>();
            for (PlanChoices.Knob knob : choice.knobs()) {
                BackendDescriptor one = kept(made, Cudnn.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR(), "knob that was kept");
                one.integer(Cudnn.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE(), Cudnn.CUDNN_TYPE_KNOB_TYPE(), knob.type())
                        .longs(Cudnn.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE(), Cudnn.CUDNN_TYPE_INT64(), knob.value())
                        .complete();
                knobs.add(one);
            }
            BackendDescriptor config =
                    kept(made, Cudnn.CUDNN_BACKEND_ENGINECFG_DESCRIPTOR(), "configuration that was kept");
            config.descriptors(Cudnn.CUDNN_ATTR_ENGINECFG_ENGINE(), List.of(engine));
            if (!knobs.isEmpty()) {
                config.descriptors(Cudnn.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES(), knobs);
            }
            config.complete();
            chosen = tried("kept choices", made);
            return chosen;
        } catch (CudnnException refused) {
            reasons.add("engine " + choice.engine() + " of kept choices: " + refused.getMessage());
            return null;
        } finally {
            if (chosen == null) {
                Closing.newestFirst(new ArrayList<>(made));
            }
        }
    }

    private static BackendDescriptor kept(List<BackendDescriptor> made, int type, String what) {
        made.add(BackendDescriptor.make(type, what));
        return made.getLast();
    }

    /** Plans the last of the descriptors, a configuration. */
    private @Nullable Chosen tried(String what, List<BackendDescriptor> made) {
        BackendDescriptor config = made.getLast();
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
            List<PlanChoices.Knob> knobs = knobs(config);
            return planned(engine, made, new PlanChoices.Choice(index, knobs), text(engine, knobs, described, notes));
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

    private @Nullable Chosen planned(
            String engine, List<BackendDescriptor> made, PlanChoices.Choice choice, String text) {
        BackendDescriptor plan =
                BackendDescriptor.make(Cudnn.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR(), "plan of " + engine);
        try {
            plan.longs(Cudnn.CUDNN_ATTR_EXECUTION_PLAN_HANDLE(), Cudnn.CUDNN_TYPE_HANDLE(), handle)
                    .descriptors(Cudnn.CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG(), List.of(made.getLast()))
                    .complete();
            long bytes = plan.getLong(Cudnn.CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE());
            if (bytes <= options.workspaceLimit()) {
                List<BackendDescriptor> all = new ArrayList<>(made);
                all.add(plan);
                return new Chosen(all, choice, bytes, text);
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
            String engine, List<PlanChoices.Knob> knobs, BackendDescriptor described, List<Integer> notes) {
        StringJoiner numerical = new StringJoiner(", ");
        notes.forEach(note -> numerical.add(NumericalNote.nameOf(note)));
        StringJoiner behavior = new StringJoiner(", ");
        described
                .getIntegers(Cudnn.CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE(), Cudnn.CUDNN_TYPE_BEHAVIOR_NOTE(), MOST_NOTES)
                .forEach(note -> behavior.add(BehaviorNote.nameOf(note)));
        return engine + "\nknobs: " + PlanChoices.Knob.text(knobs) + "\nnumerical notes: " + orNone(numerical)
                + "\nbehavior notes: " + orNone(behavior);
    }

    private static String orNone(StringJoiner joined) {
        return joined.length() == 0 ? "none" : joined.toString();
    }

    private static List<PlanChoices.Knob> knobs(BackendDescriptor config) {
        List<PlanChoices.Knob> all = new ArrayList<>();
        for (BackendDescriptor knob : config.getDescriptors(
                Cudnn.CUDNN_ATTR_ENGINECFG_KNOB_CHOICES(), Cudnn.CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR(), "knob")) {
            try (knob) {
                all.add(new PlanChoices.Knob(
                        knob.getInteger(Cudnn.CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE(), Cudnn.CUDNN_TYPE_KNOB_TYPE()),
                        knob.getLong(Cudnn.CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE())));
            }
        }
        return all;
    }
}
