package dev.chagres.trainer.plan;

import dev.chagres.DType;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.bindings.ForeignText;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.optim.Adafactor;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.Lion;
import dev.chagres.optim.Muon;
import dev.chagres.optim.OptimizerConfig;
import dev.chagres.optim.ScheduleFreeAdamW;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.TrainingRecipe;
import dev.chagres.trainer.command.EnumOption;
import java.util.Locale;

/**
 * One way to train a model.
 *
 * <p>Threading: immutable.
 *
 * @param strategy what ranks split or shard
 * @param accumulate micro-batches of a rank in a step
 * @param recompute what backward recomputes
 * @param optimizer how weights are updated
 * @param offload of how many layers the inputs lie in the host's memory, where whole layers are recomputed
 */
record Choice(
        Strategy strategy, int accumulate, Recomputation recompute, Updates optimizer, ActivationOffload offload) {
    /** Of the first weights of an update's rate: {@code train} has the same. */
    private static final AdamW.Config ADAM = new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f);

    /** What ranks split or shard. */
    enum Strategy {
        /** Nothing. */
        DDP,
        /** The optimizer's state. */
        ZERO1,
        /** Gradients, too. */
        ZERO2,
        /** Weights, too. */
        ZERO3,
        /** As zero3 within each of two copies of the model. */
        HSDP,
        /** Each layer's matrices. */
        TP,
        /** The layers. */
        PP,
        /** The tokens of each micro-batch. */
        CP;

        private static final int COPIES = 2;

        /** Returns whether all ranks compute the same micro-batches. */
        boolean sharesMicroBatches() {
            return this == TP || this == PP || this == CP;
        }

        /** Returns among how many ranks the optimizer's state is divided. */
        int updateRanks(int gpus) {
            return switch (this) {
                case DDP, CP -> 1;
                case HSDP -> gpus / COPIES;
                default -> gpus;
            };
        }

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT);
        }
    }

    /** How weights are updated, and the bytes that an update reads and writes of a parameter with weights of 16 bits. */
    enum Updates {
        /** AdamW. */
        ADAMW(32),
        /**
         * AdamW with moments and masters in the host's memory: its ten bytes go over a link of 50 GB/s each way at the same time, and the device's
         * memory is 77 times as fast.
         */
        ADAMW_OFFLOADED(32 + 10 * 77),
        /** AdamW with states of eight bits. */
        ADAMW8BIT(20),
        /** Lion. */
        LION(24),
        /** Lion with states of eight bits. */
        LION8BIT(18),
        /** SGD with momentum. */
        SGD(24),
        /** Adafactor, which reads gradients four times and masters twice. */
        ADAFACTOR(28),
        /**
         * Muon: 32, another 12 for the norm of a matrix, and in each of five steps 12 for its elements and 4 for those of its square. Its
         * products are counted with those of the step.
         */
        MUON(32 + 12 + 5 * (12 + 4)),
        /** Schedule-free AdamW. */
        SCHEDULE_FREE(34);

        private final int bytes;

        Updates(int bytes) {
            this.bytes = bytes;
        }

        private OptimizerConfig config() {
            return switch (this) {
                case ADAMW -> ADAM;
                case ADAMW_OFFLOADED -> ADAM.offloaded();
                case ADAMW8BIT -> ADAM.withMomentDType(DType.BYTE);
                case LION -> Lion.Config.standard();
                case LION8BIT -> Lion.Config.standard().withMomentDType(DType.BYTE);
                case SGD -> new dev.chagres.optim.SGD.Config(0.9f, 0.01f);
                case ADAFACTOR -> Adafactor.Config.standard();
                case MUON -> Muon.Config.standard().withOthers(ADAM);
                case SCHEDULE_FREE -> ScheduleFreeAdamW.Config.standard();
            };
        }

        @Override
        public String toString() {
            return name().toLowerCase(Locale.ROOT).replace('_', '-');
        }
    }

    /** The steps that all choices are to make. */
    record Steps(PlannedModel model, int gpus, int tokens, int context, TrainingRecipe recipe) {}

    /** Makes one with all inputs of layers on the device. */
    Choice(Strategy strategy, int accumulate, Recomputation recompute, Updates optimizer) {
        this(strategy, accumulate, recompute, optimizer, ActivationOffload.none());
    }

    /** Returns the same with so many micro-batches of a rank. */
    Choice with(int newAccumulate) {
        return new Choice(strategy, newAccumulate, recompute, optimizer, offload);
    }

    /** Returns the same with inputs of layers in the host's memory. */
    Choice with(ActivationOffload newOffload) {
        return new Choice(strategy, accumulate, recompute, optimizer, newOffload);
    }

    /** Returns how many ranks have micro-batches of their own. */
    int dataRanks(Steps steps) {
        return strategy.sharesMicroBatches() ? 1 : steps.gpus;
    }

    /** Returns whether each micro-batch can have a sequence, and heads divide. */
    boolean isPossible(Steps steps) {
        int parts = dataRanks(steps) * accumulate;
        boolean whole =
                steps.tokens % (BatchShape.TOKEN_MULTIPLE * parts) == 0 && steps.tokens / parts >= steps.context;
        boolean divides = switch (strategy) {
            case TP -> steps.model.keyHeads() % steps.gpus == 0;
            case HSDP -> steps.gpus > Strategy.COPIES && steps.gpus % Strategy.COPIES == 0;
            case PP -> steps.model.layers() >= steps.gpus;
            case CP -> steps.model.keyHeads() % steps.gpus == 0 && steps.model.esm() != null;
            default -> true;
        };
        return whole && divides && (steps.gpus > 1 || strategy == Strategy.DDP);
    }

    /** Returns how many layers a rank has; that of a pipeline which has most. */
    int ownLayers(Steps steps) {
        return strategy == Strategy.PP ? Math.ceilDiv(steps.model.layers(), steps.gpus) : steps.model.layers();
    }

    /** Returns what a rank copies to the host's memory in a micro-batch, and back. */
    StepTime.Copies copies(Steps steps) {
        int tokens = steps.tokens / (dataRanks(steps) * accumulate) / (strategy == Strategy.CP ? steps.gpus : 1);
        double input =
                (double) tokens * steps.model.hidden() * steps.recipe.dtype().byteSize();
        int layers = ownLayers(steps);
        return new StepTime.Copies(layers, offload.copied(layers), input);
    }

    /** Returns what trains in this way. */
    Trainer trainer(Steps steps) {
        var shape = new BatchShape(BatchLayout.PACKED, steps.tokens, steps.context, dataRanks(steps) * accumulate);
        Trainer trainer = Trainer.of(steps.model.factory(recompute), shape)
                .withDtype(steps.recipe.dtype())
                .withOptimizer(optimizer.config(), 1)
                .withOffload(offload);
        if (steps.recipe.quantizedWeight().isPresent()) {
            trainer = trainer.withRecipe(steps.recipe.quantizedWeight().get());
        }
        MeshShape one = MeshShape.ofOne();
        return switch (strategy) {
            case DDP -> {
                Trainer replicated =
                        steps.gpus == 1 ? trainer : trainer.withMesh(one.with(MeshDimension.REPLICATE, steps.gpus));
                yield captured(replicated);
            }
            case TP -> captured(trainer.withMesh(one.with(MeshDimension.TENSOR, steps.gpus)));
            case HSDP ->
                trainer.withMesh(one.with(MeshDimension.REPLICATE, Strategy.COPIES)
                                .with(MeshDimension.SHARD, steps.gpus / Strategy.COPIES))
                        .withSharding(FullyShardedConfig.of(ZeroStage.THREE));
            case PP -> trainer.withMesh(one.with(MeshDimension.PIPELINE, steps.gpus));
            case CP -> trainer.withMesh(one.with(MeshDimension.CONTEXT, steps.gpus));
            case ZERO1 -> sharded(trainer, ZeroStage.ONE, steps.gpus);
            case ZERO2 -> sharded(trainer, ZeroStage.TWO, steps.gpus);
            case ZERO3 -> sharded(trainer, ZeroStage.THREE, steps.gpus);
        };
    }

    private Trainer captured(Trainer trainer) {
        boolean copies = optimizer == Updates.ADAMW_OFFLOADED || !offload.isNone();
        return copies ? trainer : trainer.withCapturedSteps();
    }

    /** Returns what trains in this way on one GPU, each step kernel by kernel. */
    Trainer enqueued(Steps steps) {
        var shape = new BatchShape(BatchLayout.PACKED, steps.tokens, steps.context, accumulate);
        Trainer trainer = Trainer.of(steps.model.factory(recompute), shape)
                .withDtype(steps.recipe.dtype())
                .withOptimizer(optimizer.config(), 1);
        return steps.recipe.quantizedWeight().map(trainer::withRecipe).orElse(trainer);
    }

    private static Trainer sharded(Trainer trainer, ZeroStage stage, int gpus) {
        return trainer.withMesh(MeshShape.ofOne().with(MeshDimension.SHARD, gpus))
                .withSharding(FullyShardedConfig.of(stage));
    }

    /** Returns the bytes that a rank's update reads and writes, of so many parameters in all. */
    double updateBytes(double parameters, int gpus) {
        return optimizer.bytes * parameters / strategy.updateRanks(gpus);
    }

    /** Returns the options of {@code ./chagres train}. */
    String options(Steps steps) {
        return (steps.gpus == 1 ? "" : "--ranks " + steps.gpus + " --strategy " + strategy + " ")
                + "--tokens-per-step " + steps.tokens
                + (accumulate == 1 ? "" : " --accumulate " + accumulate)
                + (recompute == steps.model.usualRecomputation() ? "" : " --recompute " + EnumOption.word(recompute))
                + switch (optimizer) {
                    case ADAMW, ADAMW_OFFLOADED -> "";
                    default -> " --optimizer " + optimizer;
                }
                + offloadOptions();
    }

    private String offloadOptions() {
        boolean state = optimizer == Updates.ADAMW_OFFLOADED;
        if (offload.isNone()) {
            return state ? " --offload optimizer" : "";
        }
        return " --offload " + (state ? "optimizer,activations" : "activations")
                + (offload.equals(ActivationOffload.all()) ? "" : " --offload-layers " + offload);
    }

    /** Returns {@code zero2:1:none:adamw} or {@code zero2:1:layers:adamw:24}, which {@link #parse} reads. */
    @Override
    public String toString() {
        return strategy + ":" + accumulate + ":" + EnumOption.word(recompute) + ":" + optimizer
                + (offload.isNone() ? "" : ":" + offload);
    }

    /**
     * Reads what {@link #toString} gives.
     *
     * @throws IllegalArgumentException when it is something else
     */
    static Choice parse(String text) {
        String[] parts = text.toUpperCase(Locale.ROOT).split(":", -1);
        try {
            if (parts.length == 4 || parts.length == 5) {
                Choice choice = new Choice(
                        Strategy.valueOf(parts[0]),
                        Integer.parseInt(parts[1]),
                        Recomputation.valueOf(parts[2]),
                        Updates.valueOf(parts[3].replace('-', '_')));
                return parts.length == 4
                        ? choice
                        : choice.with(
                                parts[4].equals("ALL")
                                        ? ActivationOffload.all()
                                        : new ActivationOffload(Integer.parseInt(parts[4])));
            }
        } catch (IllegalArgumentException other) {
            throw new IllegalArgumentException(notOne(text), other);
        }
        throw new IllegalArgumentException(notOne(text));
    }

    private static String notOne(String text) {
        return "expected a choice such as zero2:1:none:adamw or zero2:1:layers:adamw:24, got "
                + ForeignText.quoted(text);
    }
}
