package dev.chagres.trainer;

import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.CallMode;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.RankLayout.CpCommType;
import java.util.Locale;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** Options of {@code train} that say how many ranks train, and what each keeps of the model. */
final class RankOptions {
    /** The option of {@code launch} that says how many processes there are. */
    static final String NPROC = "--nproc";

    /** Those of hsdp that no mesh says. */
    private static final int COPIES = 2;

    @Option(
            names = "--ranks",
            paramLabel = "N",
            description = "number of ranks, each a thread with a device; --strategy says what is split among them. With"
                    + " ddp, zero1, zero2, zero3 and hsdp a step has N times as many micro-batches as --accumulate says"
                    + " (default: 1, or as many as --mesh has)")
    private @Nullable Integer ranks;

    @Option(
            names = "--strategy",
            converter = OptionWords.OfStrategy.class,
            paramLabel = "ddp|zero1|zero2|zero3|hsdp|tp|pp|cp",
            description =
                    "what is split among the ranks. ddp: the micro-batches of a step; zero1: also the optimizer's state;"
                            + " zero2: also gradients; zero3: also weights; hsdp: as zero3 within each of two copies of the"
                            + " model, or within each copy of --mesh; tp: heads and columns of each layer; pp: the"
                            + " layers; cp: the tokens of each micro-batch. With --mesh: zero1, zero2 or zero3, for the"
                            + " ranks along shard and context (default: ddp; with --mesh zero3, with pipeline=P zero1)")
    private @Nullable RankStrategy strategy;

    @Option(
            names = "--mesh",
            converter = OptionWords.MeshWords.class,
            paramLabel = "pipeline=P,replicate=R,shard=S,context=C,tensor=T",
            description =
                    "several strategies at once, on P R S C T ranks: P stages of consecutive layers; R copies of the model,"
                            + " each sharded among S ranks as --strategy zero1, zero2 or zero3 says; the tokens of each"
                            + " micro-batch split among C ranks; each layer split among T ranks. A number that is not"
                            + " given is 1")
    private @Nullable MeshShape mesh;

    @Option(
            names = "--shard-optimizer",
            converter = OptionWords.OfOptimizerSharding.class,
            paramLabel = "each-copy|all-ranks",
            description =
                    "with --mesh or hsdp, among which ranks the optimizer's state is sharded: those of each copy, or those of"
                            + " all copies (default: each-copy)")
    private @Nullable OptimizerSharding optimizer;

    @Option(
            names = "--sequence-parallel",
            description =
                    "with --strategy tp, or tensor=T, each rank keeps a part of the tokens between the branches of layers,"
                            + " which takes less memory")
    private boolean sequenceParallel;

    @Option(
            names = "--stages-per-rank",
            paramLabel = "V",
            defaultValue = "1",
            description =
                    "with --strategy pp, or pipeline=P, how many stages of consecutive layers each rank has: with more than one, ranks"
                            + " wait less for each other and send more (default: ${DEFAULT-VALUE})")
    private int stagesPerRank;

    @Option(
            names = "--reduce-dtype",
            converter = OptionWords.OfGradientType.class,
            paramLabel = "fp32|bf16|fp16",
            description =
                    "with several ranks, the type in which gradients travel between them and are summed; in 16 bits products of"
                            + " zero3 and hsdp also write a rank's own gradients in that type, unless --gradient-sync is"
                            + " last-micro-batch; all other gradients are FP32 (default: fp32)")
    private OptionWords.@Nullable GradientType reduceType;

    @Mixin
    private final ShardingOptions sharding = new ShardingOptions();

    @Option(
            names = "--cp-comm-type",
            converter = OptionWords.OfCpCommType.class,
            paramLabel = "a2a|p2p|all-gather",
            description =
                    "with --strategy cp, or context=C, what ranks exchange for attention. a2a: heads, whose number C divides;"
                            + " p2p: keys and values, passed from rank to rank in a ring; all-gather: all keys and values"
                            + " (default: a2a)")
    private @Nullable CpCommType exchange;

    @Option(
            names = "--launched",
            description =
                    "this process is one of several ranks; environment variables of torchrun, srun, mpirun or a Kubernetes"
                            + " indexed job say which one. Not needed under ./chagres launch")
    private boolean launched;

    private @Nullable Ranks processes;
    /** How many processes a launcher is about to start with these options; 0: this is none. */
    private int toLaunch;

    /** Says that a launcher is about to start so many processes with these options. */
    void toLaunch(int newProcesses) {
        toLaunch = newProcesses;
    }

    /** Returns whether a launcher asks, which is no rank itself. */
    boolean isToLaunch() {
        return toLaunch > 0;
    }

    /** Returns whether several ranks poll their calls of NCCL. */
    boolean arePolled() {
        return count() > 1 && CommunicatorConfig.standard().callMode() == CallMode.NON_BLOCKING;
    }

    /** Returns the option that says how many ranks there are. */
    String countOption() {
        if (toLaunch > 0 || System.getenv(RankProcesses.LauncherWatch.LAUNCHER) != null) {
            return NPROC;
        }
        return ranks == null && mesh != null ? "--mesh" : "--ranks";
    }

    /** Returns the option that says what ranks split or shard. */
    String sharingOption() {
        return mesh != null ? "--mesh" : "--strategy";
    }

    /** Returns the number of ranks. */
    int count() {
        if (ranks != null) {
            return ranks;
        }
        return areProcesses() ? processCount() : mesh != null ? mesh.ranks() : 1;
    }

    private int processCount() {
        return processes != null ? processes.count() : toLaunch;
    }

    /** Returns whether ranks are processes. */
    boolean areProcesses() {
        return processes != null || toLaunch > 0;
    }

    /** Returns whether another process tells of the run. */
    boolean isSilent() {
        return processes != null && processes.processRank() > 0;
    }

    /** Returns which device of this host is this process's. */
    int device() {
        return processes == null ? 0 : processes.processDevice();
    }

    /** Returns the ranks as the plan has them. */
    RankLayout layout() {
        MeshShape shape = shape();
        return new RankLayout(
                shape,
                zero(shape),
                sequenceParallel,
                areProcesses() ? RankLayout.Places.PROCESSES : RankLayout.Places.THREADS,
                stagesPerRank,
                exchange != null ? exchange : CpCommType.A2A,
                reduceType().dtype());
    }

    private OptionWords.GradientType reduceType() {
        return reduceType != null ? reduceType : OptionWords.GradientType.FP32;
    }

    private MeshShape shape() {
        if (mesh != null) {
            return mesh;
        }
        return named() == RankStrategy.HSDP
                ? MeshShape.ofOne().with(MeshDimension.REPLICATE, COPIES).with(MeshDimension.SHARD, count() / COPIES)
                : MeshShape.ofOne().with(named().dimension(), count());
    }

    /** A single rank shards nothing, whatever strategy is given. */
    private RankStrategy named() {
        return strategy != null && count() > 1 ? strategy : RankStrategy.DDP;
    }

    /** Returns what stands in errors: one rank has no strategy, whatever it is told. */
    private Object given(Object ofSeveral) {
        return count() == 1 ? "one rank" : ofSeveral;
    }

    /** Returns what is sharded within copies of the model; null for nothing. */
    private @Nullable FullyShardedConfig zero(MeshShape shape) {
        ZeroStage stage = named().stage();
        if (stage == null && shape.size(MeshDimension.SHARD) > 1) {
            stage = shape.size(MeshDimension.PIPELINE) > 1 ? ZeroStage.ONE : ZeroStage.THREE;
        }
        if (stage == null) {
            return null;
        }
        FullyShardedConfig config = FullyShardedConfig.of(stage)
                .withOptimizer(optimizer != null ? optimizer : OptimizerSharding.EACH_COPY)
                .withReduceType(reduceType().dtype());
        return sharding.apply(config, shape.size(MeshDimension.PIPELINE));
    }

    /**
     * Checks what does not depend on other options.
     *
     * @throws IllegalArgumentException when an option, or a property of collectives, has no usable value; the text names it
     */
    void check() {
        if (toLaunch == 0 && (launched || Ranks.areLaunched())) {
            processes = Ranks.fromEnvironment();
        }
        if (areProcesses() && count() != processCount()) {
            throw new IllegalArgumentException("--ranks: expected " + processCount()
                    + ", as many as there are processes, or none, got " + count());
        }
        TrainOptions.requireAtLeast("--ranks", count(), 1);
        if (count() > 1) {
            var _ = CommunicatorConfig.standard(); // Refuses a property of collectives that has no usable value.
        }
        if (mesh != null && mesh.ranks() != count()) {
            throw new IllegalArgumentException(countOption() + ": expected " + mesh.ranks() + ", as many as --mesh "
                    + mesh + " has" + (areProcesses() ? "" : ", or none") + ", got " + count());
        }
        TrainOptions.requireAtLeast("--stages-per-rank", stagesPerRank, 1);
        boolean isCounted = ranks != null || mesh != null || areProcesses();
        if (strategy != null && strategy != RankStrategy.DDP && !isCounted) {
            throw new IllegalArgumentException(
                    "--strategy: expected ddp, or --ranks beside it, which says how many ranks there are, got "
                            + strategy);
        }
        checkStrategy();
        checkPipeline();
        int context = layout().contextRanks();
        if (context > BatchShape.TOKEN_MULTIPLE) {
            throw new IllegalArgumentException(sharingOption() + ": expected at most " + BatchShape.TOKEN_MULTIPLE
                    + " ranks for cp, for the smallest micro-batch has " + BatchShape.TOKEN_MULTIPLE + " tokens, got "
                    + context);
        }
        if (reduceType != null && layout().gradientRanks() == 1) {
            throw new IllegalArgumentException(
                    "--reduce-dtype: expected ranks that sum gradients, along replicate, shard or context, got "
                            + given(layout()));
        }
        sharding.check(layout().zero(), given(layout()));
        if (exchange != null && context == 1) {
            throw new IllegalArgumentException(
                    "--cp-comm-type: expected --strategy cp, or ranks along context, beside it, which split tokens,"
                            + " got "
                            + given(layout().with(CpCommType.A2A)));
        }
        if (sequenceParallel) {
            checkSequenceParallel();
        }
    }

    /**
     * Checks that ranks can split the tokens of batches of this layout.
     *
     * @throws IllegalArgumentException when they cannot
     */
    void requireLayout(BatchLayout batches) {
        if (exchange != null && exchange != CpCommType.A2A && batches != BatchLayout.PACKED) {
            throw new IllegalArgumentException(
                    "--cp-comm-type: expected a2a beside --packing off, for p2p and all-gather move packed keys, got "
                            + exchange);
        }
    }

    /** What {@code --strategy} names must be there in {@code --mesh}, which says everything else. */
    private void checkStrategy() {
        if (optimizer != null && mesh == null && named() != RankStrategy.HSDP) {
            throw new IllegalArgumentException(
                    "--shard-optimizer: expected --mesh, or --strategy hsdp, beside it, without which there is one copy, got "
                            + given(named()));
        }
        MeshShape given = mesh;
        if (given == null) {
            if (named() == RankStrategy.HSDP && (count() % COPIES != 0 || count() == COPIES)) {
                throw new IllegalArgumentException(countOption()
                        + ": expected an even number of at least 4 beside --strategy hsdp, for two copies of the"
                        + " model, sharded among half of the ranks each, or --mesh replicate=R,shard=S, got "
                        + count());
            }
            return;
        }
        if (optimizer != null && zero(given) == null) {
            throw new IllegalArgumentException(
                    "--shard-optimizer: expected ranks along shard in --mesh, which shard the optimizer's state, got "
                            + given);
        }
        if (strategy == null) {
            return;
        }
        boolean shares = given.size(MeshDimension.SHARD) > 1;
        if (strategy == RankStrategy.DDP && shares) {
            throw new IllegalArgumentException("--strategy: expected zero1, zero2 or zero3 beside --mesh " + given
                    + ", which shards the model, got ddp");
        }
        boolean isThere = strategy.stage() != null
                ? shares || given.size(MeshDimension.CONTEXT) > 1
                : given.size(strategy.dimension()) > 1;
        if (!isThere && strategy != RankStrategy.DDP) {
            throw new IllegalArgumentException("--mesh: expected ranks along "
                    + strategy.dimension().name().toLowerCase(Locale.ROOT)
                    + (strategy.stage() != null ? " or context" : "") + " beside --strategy " + strategy + ", got "
                    + given);
        }
    }

    private void checkPipeline() {
        RankLayout layout = layout();
        if (stagesPerRank > 1 && layout.pipelineRanks() == 1) {
            throw new IllegalArgumentException(
                    "--stages-per-rank: expected --strategy pp and several ranks along pipeline beside it, got "
                            + given(layout.withOneStage()));
        }
    }

    private void checkSequenceParallel() {
        RankLayout layout = layout();
        if (layout.tensorRanks() == 1) {
            throw new IllegalArgumentException(
                    "--sequence-parallel: expected --strategy tp or ranks along tensor beside it, which split layers, got "
                            + given(layout.withAllTokens()));
        }
        int sharing = layout.tensorRanks() * layout.contextRanks();
        if (BatchShape.TOKEN_MULTIPLE % sharing != 0) {
            throw new IllegalArgumentException("--sequence-parallel: expected ranks for tp"
                    + (layout.contextRanks() > 1 ? " and cp together" : "") + " that divide "
                    + BatchShape.TOKEN_MULTIPLE + ", of which the tokens of a micro-batch are a multiple, got "
                    + sharing);
        }
    }
}
