package dev.chagres.pipeline;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.sharding.Strategy;
import java.util.BitSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Which stage of a pipeline has which parameters of a model: every rank declares the whole model, and allocates memory for its stages only.
 * Initial weights are those of the whole model, since they follow from seed, name and element.
 *
 * {@snippet file="dev/chagres/pipeline/PipelineModel.java" region="plan"}
 *
 * <p>With P ranks, rank r has the stages r, r + P, … A parameter that several stages read, such as an embedding's table with a head tied to
 * it, is placed on each of them.
 *
 * <p>Threading: one thread at a time.
 */
public final class PipelinePlan {
    private final ModelPlan whole;
    private final int ranks;
    private final int stagesPerRank;
    private final Map<Parameter, BitSet> stages = new LinkedHashMap<>();
    private boolean parted;

    private PipelinePlan(ModelPlan whole, int ranks, int stagesPerRank) {
        this.whole = whole;
        this.ranks = ranks;
        this.stagesPerRank = stagesPerRank;
    }

    /**
     * Begins a plan in which no parameter has a stage yet.
     *
     * @param whole the whole model, with all parameters declared
     * @param ranks P
     * @param stagesPerRank 1 for 1F1B, more for the interleaved order
     * @throws IllegalArgumentException when a number is not positive, a single rank would have several stages, or all ranks together would
     *     have more than 4096
     */
    public static PipelinePlan of(ModelPlan whole, int ranks, int stagesPerRank) {
        PipelineSchedule.requireRanks(ranks, stagesPerRank);
        return new PipelinePlan(Checks.given("whole", whole), ranks, stagesPerRank);
    }

    /** Returns the number of stages of all ranks. */
    public int stages() {
        return ranks * stagesPerRank;
    }

    /** Returns the number of ranks. */
    public int ranks() {
        return ranks;
    }

    /** Returns the number of stages of each rank. */
    public int stagesPerRank() {
        return stagesPerRank;
    }

    /**
     * Returns the first of a stage's consecutive layers among {@code layers}; those of stage s end where those of s + 1 begin. If the
     * stages do not divide their number, the first stages have one more.
     *
     * @param layers of the whole model
     * @param stage 0 to {@link #stages()}; the last value gives the end, {@code layers}
     * @throws IllegalArgumentException when there are fewer layers than stages, or there is no such stage
     */
    public int firstLayer(int layers, int stage) {
        if (layers < stages()) {
            throw new IllegalArgumentException("layers: expected at least as many as the " + stages()
                    + " stages of the pipeline, on " + ranks + " ranks, got " + layers);
        }
        if (stage != stages()) {
            ensureStage(stage);
        }
        return stage * (layers / stages()) + Math.min(stage, layers % stages());
    }

    /**
     * Places parameters on a stage, in addition to the stages that they are on already.
     *
     * @param stage from 0 on
     * @param parameters of the plan, such as {@code plan.group("layers.3").parameters()}
     * @throws IllegalArgumentException when there is no such stage, or a parameter is none of the plan's
     * @throws IllegalStateException after a call of {@link #part}
     */
    public PipelinePlan place(int stage, List<Parameter> parameters) {
        ensureStage(stage);
        if (parted) {
            throw new IllegalStateException("place: expected calls before the first part(rank), got one after it,"
                    + " which parts made before would not follow");
        }
        List<Parameter> given = Checks.givenAll("parameters", parameters);
        for (Parameter parameter : given) {
            if (!whole.parameters().contains(parameter)) {
                throw new IllegalArgumentException("parameters: expected those of the plan, got " + parameter.name());
            }
        }
        for (Parameter parameter : given) {
            stages.computeIfAbsent(parameter, key -> new BitSet()).set(stage);
        }
        return this;
    }

    private void ensureStage(int stage) {
        Numbers.within("stage", stage, 0, stages() - 1L);
    }

    /**
     * Returns the plan of a rank's part of the model, for {@link dev.chagres.parameter.Parameters#allocate} or a {@link Strategy}.
     *
     * @throws IllegalArgumentException when there is no such rank
     * @throws IllegalStateException when a parameter of the model is on no stage
     */
    public ModelPlan part(int rank) {
        Numbers.within("rank", rank, 0, ranks - 1L);
        for (Parameter parameter : whole.parameters()) {
            if (!stages.containsKey(parameter)) {
                throw new IllegalStateException(
                        "parameter " + parameter.name() + " is on no stage: call place(stage, parameters) for it");
            }
        }
        parted = true;
        return whole.part(parameter -> ranksOf(parameter).get(rank), this::ranksOf);
    }

    /** Returns the plan of the whole model. */
    public ModelPlan whole() {
        return whole;
    }

    /** Returns the stages that have a parameter. */
    BitSet stagesOf(Parameter parameter) {
        return stages.getOrDefault(parameter, new BitSet());
    }

    /** Returns the ranks that have a parameter. */
    public BitSet ranksOf(Parameter parameter) {
        BitSet all = new BitSet();
        stagesOf(parameter).stream().forEach(stage -> all.set(stage % ranks));
        return all;
    }

    /** Returns the parameters that a rank has. */
    List<Parameter> parametersOf(int rank) {
        return whole.parameters().stream()
                .filter(parameter -> ranksOf(parameter).get(rank))
                .toList();
    }

    /** Returns whether a parameter of a stage before {@code stage} is trained. */
    boolean learnsBefore(int stage) {
        return stages.entrySet().stream()
                .anyMatch(
                        entry -> !entry.getKey().isFrozen() && entry.getValue().nextSetBit(0) < stage);
    }

    /** Returns the number of parameters of each stage. */
    @Override
    public String toString() {
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < stages(); i++) {
            int stage = i;
            long count = stages.entrySet().stream()
                    .filter(entry -> entry.getValue().get(stage))
                    .mapToLong(entry -> entry.getKey().shape().count())
                    .sum();
            text.append(i == 0 ? "" : "\n")
                    .append(String.format("stage %d on rank %d %,15d elements", stage, stage % ranks, count));
        }
        return text.toString();
    }
}
