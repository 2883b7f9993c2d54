package dev.chagres.cudnn;

import dev.chagres.internal.Checks;
import java.util.EnumSet;
import java.util.List;
import java.util.Set;
import org.jspecify.annotations.Nullable;

/**
 * Which engines a plan may take.
 *
 * <p>Threading: immutable.
 *
 * @param heuristics asked one after the other, until an engine is found
 * @param workspaceLimit the most bytes of workspace
 * @param refusedNotes engines with one of these notes are not taken
 * @param choices the engine that ran fastest is taken, and kept there; null: the first that fits is taken
 */
public record PlanOptions(
        List<HeuristicMode> heuristics,
        long workspaceLimit,
        Set<NumericalNote> refusedNotes,
        @Nullable PlanChoices choices) {
    /** Any engine: those of mode A first, then those that compute most graphs. */
    public static final PlanOptions DEFAULT =
            new PlanOptions(List.of(HeuristicMode.A, HeuristicMode.FALLBACK), Long.MAX_VALUE, Set.of(), null);

    /**
     * Checks the options.
     *
     * @throws IllegalArgumentException when there are no heuristics, or the limit is negative
     */
    public PlanOptions {
        heuristics = Checks.givenAll("heuristics", heuristics);
        refusedNotes = Checks.givenAll("refusedNotes", refusedNotes);
        if (heuristics.isEmpty()) {
            throw new IllegalArgumentException("heuristics: expected at least one mode, got none");
        }
        if (workspaceLimit < 0) {
            throw new IllegalArgumentException("workspaceLimit: expected at least 0, got " + workspaceLimit);
        }
    }

    /** Returns the same with other heuristics. */
    public PlanOptions withHeuristics(HeuristicMode... modes) {
        return new PlanOptions(List.of(Checks.givenAll("modes", modes)), workspaceLimit, refusedNotes, choices);
    }

    /** Returns the same with at most so many bytes of workspace. */
    public PlanOptions withWorkspaceLimit(long bytes) {
        return new PlanOptions(heuristics, bytes, refusedNotes, choices);
    }

    /** Returns the same without engines that have one of these notes, besides those that are refused already. */
    public PlanOptions without(NumericalNote... notes) {
        Set<NumericalNote> all = EnumSet.noneOf(NumericalNote.class);
        all.addAll(refusedNotes);
        all.addAll(List.of(Checks.givenAll("notes", notes)));
        return new PlanOptions(heuristics, workspaceLimit, all, choices);
    }

    /** Returns the same with engines alone whose results have the same bits in each run. */
    public PlanOptions deterministic() {
        return without(NumericalNote.NONDETERMINISTIC);
    }

    /**
     * Returns the same with a measured choice: the first engines that fit run on zeros, and the fastest is taken. A plan of a graph that was
     * measured before takes the same engine with the same knobs again.
     */
    public PlanOptions measured(PlanChoices kept) {
        return new PlanOptions(heuristics, workspaceLimit, refusedNotes, Checks.given("kept", kept));
    }

    /** Returns what else than the graph a measured choice depends on. */
    String limits() {
        return heuristics + " " + workspaceLimit + " "
                + refusedNotes.stream().sorted().toList();
    }
}
