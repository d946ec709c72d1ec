foreach(name config did_you_mean error files hash json log npy progress rng run_folder safetensors signals)
  contexture_test(core/${name}_test.cpp LINK core LABEL unit)
endforeach()
