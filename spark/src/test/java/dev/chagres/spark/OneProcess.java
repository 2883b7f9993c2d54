package dev.chagres.spark;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.UploadRing;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

/** The same training on one device of this process: a step adds up the gradients of what the partitions have for it. */
record OneProcess(List<Double> losses, List<Double> norms, Map<String, float[]> weights) {
    static OneProcess train(List<List<String>> partitions, BarrierConfig config) {
        List<Double> losses = new ArrayList<>();
        List<Double> norms = new ArrayList<>();
        Map<String, float[]> weights = new HashMap<>();
        List<SequencePacker> packers = IntStream.range(0, partitions.size())
                .mapToObj(i -> new SequencePacker(
                        config.shape(),
                        new MaskedProteins(
                                new PartitionSequences(partitions.get(i).iterator(), i, config.seed()))))
                .toList();
        try (Device device = Device.open();
                Esm2 model =
                        new Esm2(device, Esm2Config.of(config.size(), config.context()), DType.FLOAT32, config.seed());
                AdamW optimizer = new AdamW(model.parameters(), new AdamW.Config(0.9f, 0.98f, 1e-8f, 0.01f));
                Pass pass = Pass.training(device);
                UploadRing uploads = new UploadRing(device, config.shape(), 1)) {
            GradientNorm norm = new GradientNorm(model.parameters(), 1);
            while (true) {
                List<Batch> batches = packers.stream()
                        .map(packer -> filled(packer, config))
                        .filter(batch -> batch.microBatches() > 0)
                        .toList();
                if (batches.isEmpty()) {
                    break;
                }
                double labelled = batches.stream().mapToInt(Batch::labelled).sum();
                double loss = 0;
                for (Batch batch : batches) {
                    uploads.upload(batch);
                    pass.begin();
                    ModelInput input = uploads.next(pass.scope());
                    pass.sequences(input.sequences());
                    Tensor mean = model.loss(input.ids(), input.labels(), pass);
                    loss += mean.toFloats(device.stream())[0] * batch.labelled() / labelled;
                    model.backward((float) (batch.labelled() / labelled), pass);
                }
                norm.compute();
                optimizer.step(config.schedule().at(losses.size() + 1), norm);
                losses.add(loss);
                norms.add((double) norm.norm().toFloats(device.stream())[0]);
            }
            for (Parameter parameter : model.parameters().all()) {
                weights.put(parameter.name(), parameter.weight().toFloats(device.stream()));
            }
        }
        return new OneProcess(losses, norms, weights);
    }

    private static Batch filled(SequencePacker packer, BarrierConfig config) {
        Batch batch = new Batch(config.shape());
        packer.fill(batch);
        return batch;
    }
}
