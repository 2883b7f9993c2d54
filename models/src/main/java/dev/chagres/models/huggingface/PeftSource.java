package dev.chagres.models.huggingface;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.io.SafetensorsEntry;
import dev.chagres.models.huggingface.PeftModules.Adapted;
import dev.chagres.models.huggingface.Target.Part;
import dev.chagres.parameter.LoraConfig;
import dev.chagres.parameter.Parameters;
import java.nio.file.Path;
import java.util.List;

/**
 * A folder of PEFT with adapters, checked: for each parameter that they have the tensors that make it.
 *
 * <p>Threading: the device's thread.
 */
final class PeftSource implements AutoCloseable {
    static final String TENSORS = "adapter_model.safetensors";

    private final CheckpointWeights weights;
    private final PeftModules modules;
    private final LoraConfig lora;
    private final List<Target> targets;

    /** Owns {@code weights} from here on. */
    private PeftSource(PeftConfig fields, CheckpointWeights weights, PeftModules modules) {
        this.weights = weights;
        this.modules = modules;
        lora = fields.lora(modules);
        targets = modules.tensors(lora);
        targets.forEach(target -> weights.find(target, CheckpointWeights.Rows.SAME));
        weights.refuseOthers(PeftConfig.FILE + "'s target_modules", tensor -> false);
    }

    /** Opens the tensors of a folder, which {@link #of} then owns. */
    static CheckpointTensors tensors(Path folder) {
        return CheckpointTensors.ofFile(folder.resolve(TENSORS));
    }

    /** Checks the tensors of a folder, and owns them; closes them where it fails. */
    static PeftSource of(PeftConfig fields, CheckpointTensors tensors, PeftModules modules) {
        return CheckpointWeights.orClosed(
                new CheckpointWeights(
                        tensors,
                        List::of,
                        new CheckpointWeights.Said(PeftConfig.FILE, "target_modules and modules_to_save")),
                weights -> new PeftSource(fields, weights, modules));
    }

    LoraConfig lora() {
        return lora;
    }

    Path path() {
        return weights.main();
    }

    /** Copies the weights of the adapters, and those of a head that is saved with them, into parameters, and waits. */
    void load(Parameters parameters) {
        targets.stream().filter(PeftModules::isUneven).forEach(target -> loadUneven(target, parameters));
        weights.load(
                targets.stream().filter(target -> !PeftModules.isUneven(target)).toList(), parameters);
    }

    /** Columns that an adapter of a lower rank does not have are 0. */
    private void loadUneven(Target target, Parameters parameters) {
        Tensor weight = parameters.get(target.parameter()).weight();
        int columns = PeftModules.columns(target);
        float[] all = new float[Math.toIntExact(weight.count())];
        int row = 0;
        for (Part part : target.parts()) {
            float[] own = floats(part.tensor());
            int rank = Math.toIntExact(part.sizes()[1]);
            for (int i = 0; i < part.sizes()[0]; i++, row++) {
                System.arraycopy(own, i * rank, all, row * columns, rank);
            }
        }
        weight.set(parameters.scope().stream(), all);
    }

    /**
     * Adds the adapters' products to the weights of a model without adapters, and copies a head that is saved with them. Sums are FP32, and are
     * rounded once.
     */
    void merge(Parameters parameters) {
        Stream stream = parameters.scope().stream();
        String product = "";
        float[] sum = {};
        for (Adapted adapted : modules.adapted(lora)) {
            if (!adapted.product().equals(product)) {
                set(parameters, product, sum);
                product = adapted.product();
                sum = parameters.get(product + PeftModules.WEIGHT).weight().toFloats(stream);
            }
            add(adapted, sum);
        }
        set(parameters, product, sum);
        weights.load(
                targets.stream()
                        .filter(target -> !PeftModules.isAdapter(target.parameter()))
                        .toList(),
                parameters);
    }

    private static void set(Parameters parameters, String product, float[] sum) {
        if (!product.isEmpty()) {
            parameters.get(product + PeftModules.WEIGHT).weight().set(parameters.scope().stream(), sum);
        }
    }

    /** Adds {@code factor B A} to the rows of a module. */
    private void add(Adapted adapted, float[] sum) {
        String module = PeftModules.PREFIX + adapted.module();
        float[] b = floats(module + PeftModules.B + PeftModules.WEIGHT);
        float[] a = floats(module + PeftModules.A + PeftModules.WEIGHT);
        int rank = adapted.lora().rank();
        int columns = a.length / rank;
        for (int i = 0; i < adapted.rows(); i++) {
            int at = Math.toIntExact((adapted.firstRow() + i) * columns);
            for (int k = 0; k < rank; k++) {
                float factor = adapted.lora().factor() * b[i * rank + k];
                for (int j = 0; j < columns; j++) {
                    sum[at + j] += factor * a[k * columns + j];
                }
            }
        }
    }

    private float[] floats(String tensor) {
        SafetensorsEntry entry = weights.entry(tensor);
        entry.verify();
        return CheckpointWeights.floats(entry);
    }

    @Override
    public void close() {
        weights.close();
    }
}
