"""The options of TensorRT-LLM, llama.cpp and LMCache that bear on host memory; in the form of the other tables.

TensorRT-LLM: `tensorrt_llm/commands/serve.py` (click: no abbreviations). llama.cpp: `common/arg.cpp`. LMCache 0.5.6:
`lmcache/v1/distributed/config.py`. These tables are not whole: what isn't here is taken over unread and not named.
"""

from __future__ import annotations

TRTLLM = """
--tp_size = 1 - -
--pp_size = 1 - -
--ep_size = 1 - -
--cluster_size = 1 - -
--gpus_per_node = 1 - -
--host = 1 - -
--port = 1 - -
--tokenizer = 1 - -
--backend = 1 - -
--max_batch_size = 1 - -
--max_num_tokens = 1 - -
--max_seq_len = 1 - -
--max_beam_width = 1 - -
--kv_cache_dtype = 1 - -
--kv_cache_free_gpu_memory_fraction = 1 - -
--free_gpu_memory_fraction kv-cache-free-gpu-memory-fraction 1 - -
--num_postprocess_workers = 1 - -
--trust_remote_code = 0 - -
--extra_llm_api_options = 1 - -
--config extra-llm-api-options 1 - -
--reasoning_parser = 1 - -
--tool_parser = 1 - -
--metadata_server_config_file = 1 - -
--server_role = 1 - -
--log_level = 1 - -
"""

LLAMA = """
-m model 1 - -
--model = 1 - -
-hf hf-repo 1 - -
--hf-repo = 1 - -
--mlock = 0 - -
--no-mmap = 0 - -
--mmap = 0 - -
--load-mode = 1 - -
-cram cache-ram 1 - -
--cache-ram = 1 - -
-ngl gpu-layers 1 - -
--gpu-layers = 1 - -
--n-gpu-layers gpu-layers 1 - -
-c ctx-size 1 - -
--ctx-size = 1 - -
-np parallel 1 - -
--parallel = 1 - -
--host = 1 - -
--port = 1 - -
-t threads 1 - -
--threads = 1 - -
-b batch-size 1 - -
--batch-size = 1 - -
-ub ubatch-size 1 - -
--ubatch-size = 1 - -
-fa flash-attn ? - -
--flash-attn = ? - -
-nkvo no-kv-offload 0 - -
--no-kv-offload = 0 - -
-ncmoe n-cpu-moe 1 - -
--n-cpu-moe = 1 - -
-cmoe cpu-moe 0 - -
--cpu-moe = 0 - -
-md model-draft 1 - -
--model-draft = 1 - -
-mm mmproj 1 - -
--mmproj = 1 - -
"""

LMCACHE = """
--l1-size-gb = 1 - -
--host = 1 - -
--port = 1 - -
--config = 1 - -
--config-file config 1 - -
--chunk-size = 1 - -
--eviction-policy = 1 - -
"""
