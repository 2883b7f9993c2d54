package dev.chagres.samples.train;

import dev.chagres.sharding.MeshDimension;
import dev.chagres.sharding.MeshShape;
import dev.chagres.sharding.OptimizerSharding;
import dev.chagres.sharding.Ranks;
import dev.chagres.train.BatchShape;
import java.util.Locale;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.ITypeConverter;
import picocli.CommandLine.Option;
import picocli.CommandLine.TypeConversionException;

/** Options of {@code train} that say how many ranks train, and what each keeps of the model. */
final class RankOptions {
    @Option(
            names = "--ranks",
            paramLabel = "N",
            description =
                    "ranks, threads with a device each, that share out the micro-batches of a step, N times as many as"
                            + " --accumulate says, or with tp each layer, with pp the layers, with cp the tokens"
                            + " (default: 1, or those of --mesh)")
    private @Nullable Integer ranks;

    @Option(
            names = "--strategy",
            converter = OptionWords.OfStrategy.class,
            paramLabel = "ddp|zero1|zero2|zero3|hsdp|tp|pp|cp",
            description =
                    "what ranks share out: nothing, the optimizer's state, gradients too, weights too, weights too of"
                            + " each of several copies, each layer's heads and columns, the layers, the tokens of each"
                            + " micro-batch (default: ddp, with --mesh hsdp, tp, pp or cp)")
    private @Nullable RankStrategy strategy;

    @Option(
            names = "--mesh",
            converter = OfMesh.class,
            paramLabel = "replicate=R,shard=S|tensor=T|pipeline=P[,tensor=T]|context=C",
            description =
                    "R copies of the model, each shared out among S ranks, for --strategy hsdp, or with its layers"
                            + " split among T, for --strategy tp, or in P stages of consecutive layers, each split among T,"
                            + " for --strategy pp, or with the tokens of each micro-batch shared out among C, for --strategy"
                            + " cp")
    private @Nullable MeshShape mesh;

    @Option(
            names = "--shard-optimizer",
            converter = OptionWords.OfOptimizerSharding.class,
            paramLabel = "each-copy|all-ranks",
            description = "with --mesh, among which ranks the optimizer's state is shared out (default: each-copy)")
    private @Nullable OptimizerSharding optimizer;

    @Option(
            names = "--sequence-parallel",
            description =
                    "with --strategy tp, each rank keeps a part of the tokens between the branches of layers, which"
                            + " takes less memory")
    private boolean sequenceParallel;

    @Option(
            names = "--stages-per-rank",
            paramLabel = "V",
            defaultValue = "1",
            description =
                    "with --strategy pp, how many stages of consecutive layers each rank has: with more than one, ranks"
                            + " wait less for each other and send more (default: ${DEFAULT-VALUE})")
    private int stagesPerRank;

    @Option(
            names = "--launched",
            description =
                    "this process is one rank of several, as the variables of torchrun, srun, mpirun or a Kubernetes indexed"
                            + " job say; ./chagres launch needs no such word")
    private boolean launched;

    private @Nullable Ranks processes;

    /** Reads sizes by dimension, such as {@code replicate=2,shard=4}. */
    static final class OfMesh implements ITypeConverter<MeshShape> {
        @Override
        public MeshShape convert(String value) {
            MeshShape shape = MeshShape.ofOne();
            for (String part : value.split(",", -1)) {
                String[] words = part.split("=", -1);
                MeshDimension dimension = dimension(words[0], value);
                if (shape.size(dimension) != 1 || words.length != 2) {
                    throw wrong(value);
                }
                try {
                    shape = shape.with(dimension, Integer.parseInt(words[1]));
                } catch (IllegalArgumentException e) { // a NumberFormatException, too
                    throw wrong(value);
                }
            }
            return shape;
        }

        private static MeshDimension dimension(String word, String value) {
            return switch (word.toLowerCase(Locale.ROOT)) {
                case "replicate" -> MeshDimension.REPLICATE;
                case "shard" -> MeshDimension.SHARD;
                case "tensor" -> MeshDimension.TENSOR;
                case "pipeline" -> MeshDimension.PIPELINE;
                case "context" -> MeshDimension.CONTEXT;
                default -> throw wrong(value);
            };
        }

        private static TypeConversionException wrong(String value) {
            return new TypeConversionException("expected numbers of ranks, such as replicate=2,shard=4, got " + value);
        }
    }

    /** Returns the number of ranks. */
    int count() {
        return ranks != null ? ranks : processes != null ? processes.count() : mesh != null ? mesh.ranks() : 1;
    }

    /** Returns whether ranks are processes. */
    boolean areProcesses() {
        return processes != null;
    }

    /** Returns whether another process tells of the run. */
    boolean isSilent() {
        return processes != null && processes.processRank() > 0;
    }

    /** Returns which device of this host is this process's. */
    int device() {
        return processes == null ? 0 : processes.processDevice();
    }

    /** Returns what ranks share out. */
    RankStrategy strategy() {
        if (strategy != null) {
            return strategy;
        }
        if (mesh == null) {
            return RankStrategy.DDP;
        }
        if (mesh.size(MeshDimension.PIPELINE) > 1) {
            return RankStrategy.PP;
        }
        return mesh.size(MeshDimension.TENSOR) > 1
                ? RankStrategy.TP
                : mesh.size(MeshDimension.CONTEXT) > 1 ? RankStrategy.CP : RankStrategy.HSDP;
    }

    /** Returns the ranks as the plan has them. */
    RankLayout layout() {
        return new RankLayout(
                count(),
                strategy(),
                mesh != null ? mesh : MeshShape.ofOne().with(shared(), count()),
                optimizer != null ? optimizer : OptimizerSharding.EACH_COPY,
                sequenceParallel,
                processes != null ? RankPlaces.PROCESSES : RankPlaces.THREADS,
                stagesPerRank);
    }

    private MeshDimension shared() {
        return switch (strategy()) {
            case TP -> MeshDimension.TENSOR;
            case PP -> MeshDimension.PIPELINE;
            case CP -> MeshDimension.CONTEXT;
            case DDP, ZERO1, ZERO2, ZERO3, HSDP -> MeshDimension.SHARD;
        };
    }

    /**
     * Checks what does not depend on other options.
     *
     * @throws IllegalArgumentException when an option has no usable value; the text names it
     */
    void check() {
        if (launched || Ranks.areLaunched()) {
            Ranks present = Ranks.fromEnvironment();
            processes = present;
            if (count() != present.count()) {
                throw new IllegalArgumentException("--ranks: expected " + present.count()
                        + ", as many as there are processes, or none, got " + count());
            }
        }
        TrainOptions.requireAtLeast("--ranks", count(), 1);
        if (mesh != null && mesh.ranks() != count()) {
            throw new IllegalArgumentException("--ranks: expected " + mesh.ranks() + ", as many as --mesh " + mesh
                    + " has, or none, got " + count());
        }
        if (mesh != null) {
            check(mesh);
        }
        if (mesh == null && strategy() == RankStrategy.HSDP) {
            throw new IllegalArgumentException("--mesh: expected replicate=R,shard=S beside --strategy hsdp, got none");
        }
        if (strategy().sharesMicroBatches() && optimizer != null) {
            throw new IllegalArgumentException(
                    "--shard-optimizer: expected --strategy hsdp beside it, whose optimizer's"
                            + " state is shared out, got " + strategy());
        }
        int context = layout().contextRanks();
        if (context > BatchShape.TOKEN_MULTIPLE) {
            throw new IllegalArgumentException("--strategy: expected at most " + BatchShape.TOKEN_MULTIPLE
                    + " ranks for cp, for a micro-batch may have as few tokens, got " + context);
        }
        if (sequenceParallel) {
            checkSequenceParallel();
        }
        TrainOptions.requireAtLeast("--stages-per-rank", stagesPerRank, 1);
        if (stagesPerRank > 1 && layout().pipelineRanks() == 1) {
            throw new IllegalArgumentException(
                    "--stages-per-rank: expected --strategy pp and several ranks along pipeline" + " beside it, got "
                            + strategy());
        }
        if (mesh == null && optimizer != null) {
            throw new IllegalArgumentException(
                    "--shard-optimizer: expected --mesh beside it, without which there is one copy, got none");
        }
        if (strategy() != RankStrategy.DDP && count() == 1) {
            throw new IllegalArgumentException(
                    "--strategy: expected ddp, or --ranks above 1 to share something out, got " + strategy());
        }
    }

    private void checkSequenceParallel() {
        if (strategy() == RankStrategy.PP) {
            throw new IllegalArgumentException(
                    "--sequence-parallel: expected --strategy tp beside it, for stages of pp hand on all tokens, got "
                            + layout());
        }
        if (strategy() != RankStrategy.TP) {
            throw new IllegalArgumentException(
                    "--sequence-parallel: expected --strategy tp beside it, whose ranks split layers, got "
                            + strategy());
        }
        int tensor = layout().tensorRanks();
        if (BatchShape.TOKEN_MULTIPLE % tensor != 0) {
            throw new IllegalArgumentException(
                    "--sequence-parallel: expected ranks for tp that divide " + BatchShape.TOKEN_MULTIPLE
                            + ", of which the tokens of a micro-batch are a multiple, got " + tensor);
        }
    }

    private void check(MeshShape given) {
        String expected = switch (strategy()) {
            case HSDP -> "replicate=R,shard=S";
            case TP -> "replicate=R,tensor=T";
            case PP -> "replicate=R,pipeline=P,tensor=T";
            case CP -> "replicate=R,context=C";
            case DDP, ZERO1, ZERO2, ZERO3 ->
                throw new IllegalArgumentException(
                        "--mesh: expected --strategy hsdp, tp, pp or cp beside it, got " + strategy());
        };
        int split = strategy() == RankStrategy.PP ? given.size(MeshDimension.TENSOR) : 1;
        if (given.size(MeshDimension.REPLICATE) * given.size(shared()) * split != given.ranks()) {
            throw new IllegalArgumentException(
                    "--mesh: expected " + expected + " beside --strategy " + strategy() + ", got " + given);
        }
    }
}
