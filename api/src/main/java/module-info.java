/**
 * Safe Java over Transformer Engine, cuDNN and NCCL: devices, scopes, tensors, their functions, layers, attention, optimizers,
 * files, and the parts of a training program.
 */
module dev.chagres {
    requires transitive dev.chagres.bindings;
    requires static transitive org.jspecify;
    requires com.fasterxml.jackson.core;
    requires jdk.jfr;

    exports dev.chagres.adapter;
    exports dev.chagres.attention;
    exports dev.chagres.batch;
    exports dev.chagres.checkpoint;
    exports dev.chagres.cudnn;
    exports dev.chagres.estimate;
    exports dev.chagres.io;
    exports dev.chagres.launch;
    exports dev.chagres.layer;
    exports dev.chagres.mesh;
    exports dev.chagres.nccl;
    exports dev.chagres.ops;
    exports dev.chagres.optim;
    exports dev.chagres.parallel;
    exports dev.chagres.parameter;
    exports dev.chagres.pass;
    exports dev.chagres.pipeline;
    exports dev.chagres.recipe;
    exports dev.chagres.sharding;
    exports dev.chagres.te;
    exports dev.chagres;
}
