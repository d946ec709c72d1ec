// Which FAISS this program was built with; its own headers stay inside this folder.
#pragma once
#include <string>

namespace contexture::retriever {

std::string faiss_version();  // "1.7.3"

}  // namespace contexture::retriever
