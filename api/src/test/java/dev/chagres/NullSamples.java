package dev.chagres;

import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.CuSeqlens;
import dev.chagres.attention.Llama3Scaling;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.Bias;
import dev.chagres.layer.CrossAttentionConfig;
import dev.chagres.layer.Dropout;
import dev.chagres.layer.GeluForm;
import dev.chagres.layer.Linear;
import dev.chagres.layer.MlpActivation;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.ParallelMode;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.BranchOrder;
import dev.chagres.layer.TransformerLayerConfig.NormPlacement;
import dev.chagres.layer.TransformerLayerConfig.ResidualSource;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.UniqueId;
import dev.chagres.ops.AdafactorMatrices;
import dev.chagres.ops.AdafactorMatrix;
import dev.chagres.ops.AdafactorRange;
import dev.chagres.ops.AdafactorRanges;
import dev.chagres.ops.AdafactorStep;
import dev.chagres.ops.Adam;
import dev.chagres.ops.AdamRange;
import dev.chagres.ops.AdamRanges;
import dev.chagres.ops.CrossEntropy;
import dev.chagres.ops.MatrixProduct;
import dev.chagres.ops.NormFunction;
import dev.chagres.ops.OptimizerStep;
import dev.chagres.ops.ProductPlan;
import dev.chagres.ops.ResidualNorm;
import dev.chagres.ops.SequencePool;
import dev.chagres.ops.StepRange;
import dev.chagres.ops.StepRanges;
import dev.chagres.ops.StepState;
import dev.chagres.ops.VocabularyCrossEntropy;
import dev.chagres.optim.Adafactor;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.AveragedConfig;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.optim.Lion;
import dev.chagres.optim.LossScaler;
import dev.chagres.optim.Muon;
import dev.chagres.optim.OptimizerConfig;
import dev.chagres.optim.ParameterGroup;
import dev.chagres.optim.SGD;
import dev.chagres.optim.ScheduleFreeAdamW;
import dev.chagres.parallel.ContextParallel;
import dev.chagres.parallel.ParameterSplit;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.CodedState;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.ParameterRange;
import dev.chagres.parameter.ParameterShard;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.QuantizedWeight;
import dev.chagres.parameter.QuantizerSite;
import dev.chagres.parameter.QuantizerSite.Role;
import dev.chagres.parameter.State;
import dev.chagres.parameter.Trainable;
import dev.chagres.parameter.WeightStorage;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.pass.Layer;
import dev.chagres.pass.SharedInput;
import dev.chagres.recipe.AmaxRecording;
import dev.chagres.recipe.BackwardOverride;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Format;
import dev.chagres.recipe.Recipe;
import dev.chagres.te.Activation;
import dev.chagres.te.AttentionProblem;
import dev.chagres.te.ClampedSwiglu;
import dev.chagres.te.ContextParallelCorrection;
import dev.chagres.te.ContextParallelCorrection.LseLayout;
import dev.chagres.te.ContextParallelThd;
import dev.chagres.te.FusedQkvRope;
import dev.chagres.te.FusedRope;
import dev.chagres.te.Gemm;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.te.MultiTensorAdam;
import dev.chagres.te.Normalization;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QuantizationConfig;
import dev.chagres.te.RecipeUpdates;
import dev.chagres.te.SoftmaxType;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import java.util.function.LongConsumer;
import java.util.function.LongFunction;
import java.util.function.LongSupplier;
import java.util.function.Predicate;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/** A usable value of each type that public methods take, all of one device. */
final class NullSamples implements AutoCloseable {
    private final Map<Class<?>, Supplier<?>> samples = new HashMap<>();
    private final Device device;
    private final Parameters parameters;
    private final Communicator communicator;

    NullSamples() {
        device = Device.open();
        Scope scope = device.openScope();
        ModelPlan plan = new ModelPlan();
        Parameter weight = plan.declare("weight", Initializer.zeros(), 8, 8);
        parameters = Parameters.allocate(device, plan, DType.FLOAT32, 1);
        AttentionConfig attention = AttentionConfig.of(8, 8, AttentionMask.none());
        CuSeqlens lengths = CuSeqlens.ofLengths(scope, 8);
        communicator = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
        sample(Communicator.class, communicator);
        sample(TensorParallel.class, TensorParallel.none());
        sample(ContextParallel.class, ContextParallel.none());
        sample(ParallelMode.class, ParallelMode.NONE);
        sample(Shape.class, Shape.of(8));
        sample(Device.class, device);
        sample(Scope.class, scope);
        sample(dev.chagres.Stream.class, device.stream());
        sample(Tensor.class, weight.weight());
        QuantizedTensor copies = scope.quantized(Scaling.TENSOR, DType.FLOAT8_E4M3, 8, 8);
        sample(QuantizedTensor.class, copies);
        sample(Consumer.class, (Consumer<Tensor>) x -> {});
        sample(QuantizedWeight.class, new QuantizedWeight(copies, DType.FLOAT16, x -> {}));
        sample(Parameters.class, parameters);
        sample(Parameter.class, weight);
        sample(DType.class, DType.FLOAT32);
        sample(QkvFormat.class, QkvFormat.BSHD);
        sample(CuSeqlens.class, lengths);
        sample(Bias.class, Bias.PRESENT);
        sample(SequencePool.Kind.class, SequencePool.Kind.MEAN);
        sample(ClampedSwiglu.class, ClampedSwiglu.standard());
        sample(BranchOrder.class, BranchOrder.PARALLEL);
        sample(ResidualSource.class, ResidualSource.INPUT);
        sample(NormPlacement.class, NormPlacement.INPUT);
        sample(CrossAttentionConfig.class, CrossAttentionConfig.of(8, attention));
        sample(Activation.class, Activation.GELU);
        sample(AttentionConfig.class, attention);
        sample(AttentionMask.class, AttentionMask.none());
        sample(AttentionMask.Kind.class, AttentionMask.Kind.NONE);
        sample(Dropout.class, Dropout.none());
        sample(SharedInput.class, new SharedInput("fan"));
        sample(Initializer.class, Initializer.ones());
        sample(LoraConfig.class, LoraConfig.of(1, "query"));
        sample(LoraConfig.Scaling.class, LoraConfig.Scaling.RANK);
        sample(Trainable.class, Trainable.all());
        sample(GeluForm.class, GeluForm.ERF);
        sample(MlpActivation.class, MlpActivation.of(GeluForm.ERF));
        sample(MlpConfig.class, MlpConfig.gelu(8));
        sample(MlpConfig.Recomputation.class, MlpConfig.Recomputation.NONE);
        sample(TransformerLayerConfig.Recomputation.class, TransformerLayerConfig.Recomputation.NONE);
        sample(NormConfig.class, NormConfig.layerNorm(8));
        sample(NormConfig.Kind.class, NormConfig.Kind.RMS_NORM);
        sample(TransformerLayerConfig.class, TransformerLayerConfig.encoder(8, attention));
        sample(ParameterRange.Decay.class, ParameterRange.Decay.KEPT);
        sample(State[].class, new State[] {parameters.state()});
        sample(AdamW.Config.class, AdamW.Config.standard());
        sample(SGD.Config.class, SGD.Config.standard());
        sample(SGD.Momentum.class, SGD.Momentum.CLASSICAL);
        sample(Lion.Config.class, Lion.Config.standard());
        sample(Adafactor.Config.class, Adafactor.Config.standard());
        sample(
                AdafactorStep.class,
                new AdafactorStep(1, 0, 0, 1, 0, AdafactorStep.Rate.GIVEN, AdafactorStep.Scale.NONE));
        sample(AdafactorStep.Rate.class, AdafactorStep.Rate.GIVEN);
        sample(AdafactorStep.Scale.class, AdafactorStep.Scale.NONE);
        sample(AdafactorMatrix.class, adafactorMatrix(scope));
        sample(AdafactorMatrices.class, AdafactorMatrices.of(List.of(adafactorMatrix(scope)), scope));
        sample(AdafactorRange.class, adafactorRange(scope));
        sample(AdafactorRange.Place.class, new AdafactorRange.Place(0, 1, null, null));
        sample(AdafactorRanges.class, AdafactorRanges.of(List.of(adafactorRange(scope)), scope));
        sample(Muon.Config.class, Muon.Config.standard());
        sample(Muon.Adjustment.class, Muon.Adjustment.ORIGINAL);
        sample(ScheduleFreeAdamW.Config.class, ScheduleFreeAdamW.Config.standard());
        sample(ActivationOffload.class, ActivationOffload.none());
        sample(AveragedConfig.class, AdamW.Config.standard().withAverage(0.9f));
        sample(OptimizerConfig.class, AdamW.Config.standard());
        sample(OptimizerStep.class, OptimizerStep.of(OptimizerStep.Method.LION, 0.9f, 0.9f));
        sample(OptimizerStep.Method.class, OptimizerStep.Method.LION);
        sample(StepState.class, StepState.of(scope.tensor(DType.FLOAT32, 1)));
        sample(StepState.Codes.class, StepState.Codes.SIGNED);
        ParameterSplit whole = ParameterSplit.of(null, Shape.of(1));
        sample(ParameterSplit.class, whole);
        sample(CodedState.class, new CodedState("m", "s", StepState.Codes.SIGNED, whole));
        sample(StepRange.class, stepRange(scope));
        sample(StepRanges.class, StepRanges.of(List.of(stepRange(scope)), scope));
        sample(AdamRange.class, range(scope));
        sample(AdamRanges.class, AdamRanges.of(List.of(range(scope)), scope));
        sample(AdamW.Masters.class, AdamW.Masters.FLOAT32);
        sample(Adam.class, new Adam(0.9f, 0.9f, 1, WeightDecay.L2, BiasCorrection.YES));
        sample(MultiTensorAdam.class, new MultiTensorAdam(0.9f, 0.9f, 1, WeightDecay.L2, BiasCorrection.YES, 0));
        sample(MatrixProduct.class, MatrixProduct.of(Gemm.Transpose.NO, Gemm.Transpose.NO, ProductPlan.FIRST));
        sample(
                ResidualNorm.class,
                new ResidualNorm(new NormFunction(NormFunction.Kind.RMS_NORM, Normalization.Gamma.PLAIN, 1)));
        sample(CrossEntropy.class, new CrossEntropy(8, 0));
        sample(CrossEntropy.Factors.class, CrossEntropy.Factors.one());
        sample(VocabularyCrossEntropy.class, new VocabularyCrossEntropy(0, 8, 8, 0));
        sample(WeightDecay.class, WeightDecay.DECOUPLED);
        sample(BiasCorrection.class, BiasCorrection.YES);
        sample(WeightStorage.class, WeightStorage.MODEL_TYPE);
        sample(State.Number.Form.class, State.Number.Form.WHOLE);
        sample(Normalization.class, new Normalization(0, Normalization.Gamma.PLAIN).gamma(weight.weight()));
        sample(Normalization.Gamma.class, Normalization.Gamma.PLAIN);
        sample(QkNorm.class, QkNorm.none());
        sample(QkNorm.Kind.class, QkNorm.Kind.RMS_NORM);
        sample(QkNorm.Place.class, QkNorm.Place.AFTER_ROTATION);
        sample(AttentionProblem.Order.class, AttentionProblem.Order.FASTEST);
        sample(FusedRope.class, new FusedRope(weight.weight(), FusedRope.Pairing.HALVES));
        sample(FusedRope.Pairing.class, FusedRope.Pairing.HALVES);
        sample(ContextParallelThd.Half.class, ContextParallelThd.Half.FIRST);
        LseLayout layout = LseLayout.PACKED;
        sample(LseLayout.class, layout);
        sample(FusedQkvRope.class, new FusedQkvRope(weight.weight(), weight.weight(), FusedRope.Pairing.HALVES));
        sample(
                ContextParallelCorrection.class,
                new ContextParallelCorrection(weight.weight(), weight.weight(), layout));
        sample(ContextParallelCorrection.Extent.class, ContextParallelCorrection.Extent.WHOLE_SEQUENCES);
        sample(ContextParallelCorrection.Update.class, ContextParallelCorrection.Update.ADD);
        sample(Llama3Scaling.class, Llama3Scaling.llama31());
        sample(RotaryConfig.class, RotaryConfig.of(8));
        sample(ParameterShard.class, new ParameterShard(new ParameterShard.Part(0, 1), null));
        sample(ParameterShard.Part.class, new ParameterShard.Part(0, 1));
        sample(ParameterGroup.class, ParameterGroup.of("group", member -> true));
        sample(List.class, List.of());
        sample(Predicate.class, (Predicate<Parameter>) member -> true);
        sample(Float.class, 0.5f);
        sample(LossScaler.Config.class, LossScaler.Config.standard());
        sample(LossScaler.class, new LossScaler(parameters, LossScaler.Config.standard()));
        sample(LearningRateSchedule.Decay.class, LearningRateSchedule.Decay.LINEAR);
        sample(String.class, "name");
        sample(Object.class, "owner");
        sample(String[].class, new String[] {"name"});
        sample(int[].class, new int[] {8});
        sample(float[].class, new float[] {0.5f});
        sample(SoftmaxType.class, SoftmaxType.VANILLA);
        sample(int.class, 8);
        sample(long.class, 8L);
        sample(float.class, 0.5f);
        sample(double.class, 0.5);
        sample(Runnable.class, (Runnable) () -> {});
        sample(LongFunction.class, (LongFunction<Scope>) bytes -> scope);
        sample(Role.class, Role.INPUT);
        sample(QuantizerSite.class, new ModelPlan().quantizer("site", Role.INPUT));
        sample(Recipe.class, Float8CurrentScaling.standard());
        sample(Recipe.Product.class, Recipe.Product.FORWARD);
        sample(Set.class, Set.of());
        sample(Format.class, Format.HYBRID);
        sample(BackwardOverride.class, BackwardOverride.NONE);
        sample(AmaxRecording.class, AmaxRecording.OFF);
        sample(QuantizationConfig.class, QuantizationConfig.standard());
        sample(QuantizationConfig.Scales.class, QuantizationConfig.Scales.FLOAT32);
        sample(Gemm.Accumulator.class, Gemm.Accumulator.FAST);
        sample(RecipeUpdates.AmaxAlgorithm.class, RecipeUpdates.AmaxAlgorithm.MAX);
        sample(IntFunction.class, (IntFunction<Layer>) i -> layer());
        sample(Supplier.class, (Supplier<Object>) () -> "saved");
        sample(LongSupplier.class, (LongSupplier) () -> 1);
        sample(LongConsumer.class, (LongConsumer) value -> {});
        samples.put(ModelPlan.class, ModelPlan::new);
        samples.put(Layer.class, NullSamples::layer);
        samples.put(Layer[].class, () -> new Layer[] {layer()});
    }

    private static AdamRange range(Scope scope) {
        Supplier<Tensor> vector = () -> scope.tensor(DType.FLOAT32, 1);
        return new AdamRange(vector.get(), vector.get(), vector.get(), vector.get(), null, vector.get(), 0);
    }

    private static StepRange stepRange(Scope scope) {
        Supplier<Tensor> vector = () -> scope.tensor(DType.FLOAT32, 1);
        StepState state = StepState.of(vector.get());
        return new StepRange(vector.get(), vector.get(), null, state, null, vector.get(), null, 0);
    }

    private static AdafactorMatrix adafactorMatrix(Scope scope) {
        LongFunction<Tensor> vector = count -> scope.tensor(DType.FLOAT32, count);
        return new AdafactorMatrix(
                scope.tensor(DType.FLOAT32, 2, 1),
                vector.apply(1),
                vector.apply(1),
                null,
                vector.apply(1),
                vector.apply(3),
                vector.apply(1));
    }

    private static AdafactorRange adafactorRange(Scope scope) {
        Supplier<Tensor> vector = () -> scope.tensor(DType.FLOAT32, 1);
        var place = new AdafactorRange.Place(0, 1, null, null);
        return new AdafactorRange(adafactorMatrix(scope), place, vector.get(), vector.get(), null, null, 0);
    }

    private static Layer layer() {
        return new Linear(8, 8, Initializer.zeros(), new ModelPlan());
    }

    private void sample(Class<?> type, Object value) {
        samples.put(type, () -> value);
    }

    /** Returns a sample; null where there is none. */
    @Nullable
    Object of(Class<?> type) {
        Supplier<?> made = samples.get(type);
        return made == null ? null : made.get();
    }

    /** Returns all that have methods of this library. */
    List<Object> all() {
        return samples.values().stream()
                .<Object>map(Supplier::get)
                .filter(one -> one.getClass().getName().startsWith("dev.chagres."))
                .toList();
    }

    @Override
    public void close() {
        parameters.close();
        communicator.close();
        device.close();
    }
}
