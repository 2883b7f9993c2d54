package dev.chagres.pipeline;

import dev.chagres.Stream;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Inside;
import dev.chagres.internal.ranks.AllGatherLongs;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.nccl.Communicator;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.PipelineStages;
import dev.chagres.parameter.PipelineStages.Tied;
import dev.chagres.pass.Pass;
import dev.chagres.pipeline.PipelineRank.PipelinePlaces;
import dev.chagres.sharding.ZeroStage;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.zip.CRC32C;

/**
 * Pipeline-parallel training and evaluation: each rank has consecutive layers of the model, a stage, and the micro-batches of a step go
 * through the stages one after another, so that all ranks compute at the same time.
 *
 * <p>A step computes what one rank computes that accumulates the same micro-batches:
 *
 * {@snippet file="dev/chagres/pipeline/PipelineParallelTest.java" region="step"}
 *
 * <p>Each micro-batch has its own {@link Pass} in each stage; there are as many as are in flight at a time ({@link
 * PipelineSchedule#passes}). The output of a stage is sent to the next one, the gradient of its input to the one before, by NCCL's send and
 * receive on the stream that computes.
 *
 * <p>Dropout draws the masks of one rank: a stage continues the count of draws of the stage before. Parameters that several stages have are
 * tied: before the norm and the step their gradients are summed over those stages, so that their weights stay the same. The norm of the
 * gradients is that of all stages.
 *
 * <p>An evaluation computes forward only:
 *
 * {@snippet file="dev/chagres/pipeline/PipelineEvaluationTest.java" region="evaluate"}
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Narayanan et al., Efficient large-scale language model training on GPU clusters using Megatron-LM (2021).
 */
public final class PipelineParallel implements AutoCloseable {
    private final Parameters parameters;
    private final Mesh mesh;
    private final List<Communicator> tiedRanks;
    private final PipelineRank rank;
    private final PipelineRuns runs;
    private boolean closed;

    private PipelineParallel(PipelinePlan plan, Parameters parameters, Mesh mesh, long width, PipelineTies ties) {
        this.parameters = parameters;
        this.mesh = mesh;
        tiedRanks = ties.communicators();
        Stream stream = parameters.scope().stream();
        PipelinePlaces places = new PipelinePlaces(parameters.dtype(), width, stream);
        rank = new PipelineRank(plan, mesh.along(MeshDimension.PIPELINE), stream, places);
        runs = new PipelineRuns(rank, parameters);
    }

    /**
     * Joins the ranks along {@link MeshDimension#PIPELINE}. Each rank calls it, before it makes a {@link
     * dev.chagres.optim.GradientNorm}.
     *
     * @param plan of the whole model, for as many ranks
     * @param parameters of this rank's part of the plan; closed after this
     * @param width columns of the tensors that stages exchange, in the parameters' type
     * @param mesh must stay open as long as this
     * @throws IllegalArgumentException when the plan is for another number of ranks, the parameters are not those of this rank's part, they
     *     lie on another device, or the width is not positive
     * @throws IllegalStateException when ranks have different plans, or the parameters belong or belonged to a pipeline already, or to a
     *     {@link dev.chagres.optim.GradientNorm}
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come
     */
    public static PipelineParallel of(PipelinePlan plan, Parameters parameters, long width, Mesh mesh) {
        Communicator communicator = Checks.given("mesh", mesh).along(MeshDimension.PIPELINE);
        if (Checks.given("plan", plan).ranks() != communicator.ranks()) {
            throw new IllegalArgumentException("plan: expected one for " + communicator.ranks()
                    + " ranks, as many as the mesh has along PIPELINE, got one for " + plan.ranks());
        }
        ModelPlan part = plan.part(communicator.rank());
        Stream stream = Checks.given("parameters", parameters).scope().stream();
        if (!parameters
                .all()
                .equals(part.groups().values().stream().flatMap(List::stream).toList())) {
            throw new IllegalArgumentException("parameters: expected those of plan.part(" + communicator.rank()
                    + "), got others: allocate them of that part");
        }
        if (stream.device() != communicator.device()) {
            throw new IllegalArgumentException("parameters: expected those of " + communicator.device()
                    + ", got some of " + Checks.other(stream.device(), communicator.device()));
        }
        Checks.atLeastOne("width", width);
        parameters.access().ensureUnstaged();
        PipelineTies.ensureSame(plan, parameters, width, communicator);
        PipelineTies ties = PipelineTies.of(plan, parameters, communicator);
        try {
            return new PipelineParallel(plan, parameters, mesh, width, ties);
        } catch (RuntimeException | Error failure) {
            ties.communicators().forEach(Communicator::close);
            throw failure;
        }
    }

    /**
     * Returns the passes of this rank, for settings that hold for each step, such as {@link Pass#autocast}. If weights are sharded ({@link
     * ZeroStage#THREE}), the strategy must follow each of them:
     *
     * {@snippet file="dev/chagres/pipeline/MeshPipelineTest.java" region="passes"}
     */
    public List<Pass> passes() {
        return runs.training.passes();
    }

    /**
     * Enqueues forward and backward of all micro-batches of a step through this rank's stages, and the transfers between. Each rank calls
     * it, with the same number. The step's sums, norm and update come after it.
     *
     * <p>The first run waits for the device once a stage, to learn how many random numbers earlier stages draw for dropout. That run, and
     * each run with another number of micro-batches than the last one, waits for the device once more, to compare the ranks' numbers. The
     * first run, and the second one if a rank had no optimizer before, compare the settings of the ranks' optimizers, too.
     *
     * @param stage computes; when it throws, the gradients of this step are discarded
     * @param microBatches of the step; with several stages a rank best a multiple of the ranks
     * @throws IllegalArgumentException when the number is not positive or more than a {@link PipelineSchedule} can have, ranks that
     *     compare theirs have other ones, or a micro-batch has no tokens
     * @throws IllegalStateException when this is closed, a stage calls it, or a run or an evaluation has failed before on several ranks.
     *     Also when a stage draws another number of random numbers than in the first micro-batch. Also, on every rank, when optimizers of
     *     two ranks have different settings (betas, epsilon, decay, types, or groups with their rates and decays)
     * @throws dev.chagres.bindings.CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException when another rank failed or did not come, also if it uses the last run's number of
     *     micro-batches and this rank does not
     */
    public void run(PipelineStage stage, int microBatches) {
        ensureOpen();
        runs.train(stage, microBatches);
    }

    /**
     * Enqueues forward of all micro-batches through this rank's stages, and the transfers between, as in evaluation passes on one rank:
     * without dropout, and without calls of {@link PipelineStage#backward}. Each rank calls it, with the same number. It may be called
     * before, between and after runs, also between a run and the norm: it does not change weights, gradients, random numbers or the amaxes
     * of recipes.
     *
     * <p>All micro-batches use one pass, {@link #evaluationPass}. The memory that a call of a stage takes from it is taken back at the next
     * call.
     *
     * <p>The first evaluation, and each one with another number of micro-batches than the last one, waits for the device, to compare the
     * ranks' numbers. A failure has the effects of one in {@link #run}, except that gradients are kept.
     *
     * @param stage computes
     * @param microBatches any number, such as that of all sequences of an evaluation set
     * @throws IllegalArgumentException as {@link #run} does; as many micro-batches are allowed as a {@link PipelineSchedule#evaluation} can
     *     have
     * @throws IllegalStateException when this is closed, a stage calls it, a run or an evaluation has failed before on several ranks, or a
     *     stage before the last one draws random numbers
     * @throws dev.chagres.bindings.CaptureException while the stream captures
     * @throws dev.chagres.nccl.RankFailedException as {@link #run} does
     */
    public void evaluate(PipelineStage stage, int microBatches) {
        ensureOpen();
        runs.evaluate(stage, microBatches);
    }

    /**
     * Returns the pass of {@link #evaluate}, for settings that hold for each evaluation, such as {@link Pass#autocast}. If weights are
     * sharded ({@link ZeroStage#THREE}), the strategy must follow it:
     *
     * {@snippet file="dev/chagres/pipeline/MeshPipelineTest.java" region="evaluation-pass"}
     *
     * @throws IllegalStateException when this is closed
     */
    public Pass evaluationPass() {
        ensureOpen();
        return runs.evaluation.pass();
    }

    /** Returns the plan of all stages. */
    public PipelinePlan plan() {
        return rank.plan();
    }

    /** Returns the mesh of all ranks. */
    public Mesh mesh() {
        return mesh;
    }

    /** Returns the parameters of this rank's stages. */
    public Parameters parameters() {
        return parameters;
    }

    /**
     * For checkpoints.
     *
     * @throws IllegalStateException when this is closed
     */
    public void ensureOpen() {
        if (closed) {
            throw new IllegalStateException("the " + this + " is closed");
        }
    }

    /**
     * Frees passes and the buffers between stages. A second call does nothing.
     *
     * @throws IllegalStateException while a stream of the device captures, inside {@link Communicator#group}, or when a stage calls it
     */
    @Override
    public void close() {
        if (closed) {
            return;
        }
        runs.ensureNoneRuns("close");
        Inside.state(rank.stream()).ensureCloses();
        closed = true;
        runs.close();
        rank.places().close();
        tiedRanks.reversed().forEach(Communicator::close);
    }

    /** Returns rank and stages. */
    @Override
    public String toString() {
        return rank.toString();
    }

    /**
     * The tied parameters of a pipeline: those that several ranks have.
     *
     * @param communicators of the ranks that have parameters in common with this one; closed by whoever made this
     */
    private record PipelineTies(List<Communicator> communicators) {
        /** Makes communicators of ranks with common parameters, and registers them with the parameters; each rank calls it. */
        static PipelineTies of(PipelinePlan plan, Parameters parameters, Communicator ranks) {
            Map<BitSet, List<Parameter>> shared = new LinkedHashMap<>();
            for (Parameter parameter : plan.whole().parameters()) {
                BitSet holders = plan.ranksOf(parameter);
                if (holders.cardinality() > 1 && !parameter.isFrozen()) {
                    shared.computeIfAbsent(holders, key -> new ArrayList<>()).add(parameter);
                }
            }
            List<Communicator> communicators = new ArrayList<>();
            List<Tied> tied = new ArrayList<>();
            Set<Parameter> countedElsewhere = new HashSet<>();
            try {
                shared.forEach((holders, members) -> {
                    if (!holders.get(ranks.rank())) {
                        ranks.splitWithoutPart();
                        return;
                    }
                    Communicator among =
                            ranks.split(0, ranks.rank(), ranks.config().withName("tied"));
                    communicators.add(among);
                    for (Parameter member : members) {
                        tied.add(new Tied(member, among));
                        if (holders.nextSetBit(0) != ranks.rank()) {
                            countedElsewhere.add(member);
                        }
                    }
                });
                PipelineStages stages =
                        new PipelineStages(parameters.scope(), ranks, tied, countedElsewhere, plan::parametersOf);
                parameters.adopt(stages);
                parameters.access().stages(stages);
            } catch (RuntimeException | Error failure) {
                communicators.forEach(Communicator::close);
                throw failure;
            }
            return new PipelineTies(communicators);
        }

        /** Checks that all ranks have the same plan; with different plans they would hang. */
        static void ensureSame(PipelinePlan plan, Parameters parameters, long width, Communicator ranks) {
            CRC32C checksum = new CRC32C();
            String head = width + " " + parameters.dtype() + " " + plan.stages();
            checksum.update(head.getBytes(StandardCharsets.UTF_8));
            for (Parameter parameter : plan.whole().parameters()) {
                String text = parameter.name()
                        + parameter.wholeShape()
                        + parameter.ownType()
                        + parameter.isFrozen()
                        + plan.stagesOf(parameter);
                checksum.update(text.getBytes(StandardCharsets.UTF_8));
            }
            int other = AllGatherLongs.firstOther(ranks, parameters.scope().stream(), checksum.getValue());
            if (other > 0) {
                throw new IllegalStateException("plan: expected the same on all ranks of the pipeline, got another on"
                        + " rank " + other
                        + " than on rank 0; declare the whole model on each, with the same types,"
                        + " stages and width and the same parameters frozen");
            }
        }
    }
}
